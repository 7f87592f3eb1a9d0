# A server of mapped embeddings, `congruence bridge serve`. Built from the repository:
#   docker build -t congruence --build-arg EXTRAS=serve,onnx .
#   docker run -p 8000:8000 -v ./bridge:/srv/bridge:ro -v ./model:/srv/model:ro -v ./key:/run/secrets/key:ro \
#     congruence bridge serve bridge --encoder onnx:model --host 0.0.0.0 --api-key-file /run/secrets/key
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir dist .

FROM python:3.13-slim
ARG EXTRAS=serve,onnx
RUN useradd --create-home --uid 10001 congruence
COPY --from=build /build/dist /opt/dist
COPY constraints.txt /opt/constraints.txt
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN pip install --no-cache-dir -c /opt/constraints.txt "$(echo /opt/dist/*.whl)[${EXTRAS}]" \
    && rm -r /opt/dist /opt/constraints.txt
USER 10001
WORKDIR /srv
EXPOSE 8000
# Answers 200 while it serves, 503 while it stops; without a key.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["congruence"]
CMD ["serve", "--help"]

// Browsers do not start workers for pages that are opened as files. For these, the search runs in a hidden frame with the interface of a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      this.inner = inner;
      inner.postMessage = (data) => setTimeout(() => this.tell("message", new MessageEvent("message", { data })));
      inner.importScripts = () => { throw new Error("the search imports no further scripts"); };
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = resolve;
        script.onerror = () => this.tell("error", new ErrorEvent("error", { message: `no ${url}` }));
        inner.document.head.append(script);
      });
    }
    tell(name, event) {
      this[`on${name}`]?.(event);
      this.dispatchEvent(event);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}

"""Process many files on one or several machines: work split by fragments, journaled, and run by Ray, Spark, Daft, Dask or this process."""

from congruence.engines._base import Engine
from congruence.engines.batch import MapBatch
from congruence.engines.dataset import DataSet, Fragment, open_dataset
from congruence.engines.embed import EmbedDataSetReport, EncoderSpec, embed_dataset
from congruence.engines.fit import fit_dataset
from congruence.engines.items import ItemSet, open_itemset
from congruence.engines.local import LocalEngine
from congruence.engines.migrate import EngineExecutor
from congruence.engines.pairs import PairedData, open_pairs
from congruence.engines.ray import RayEngine
from congruence.engines.sample import read_sample
from congruence.engines.transform import DataSetReport, transform_dataset

__all__ = [
    "DataSet",
    "DataSetReport",
    "EmbedDataSetReport",
    "EncoderSpec",
    "Engine",
    "EngineExecutor",
    "Fragment",
    "ItemSet",
    "LocalEngine",
    "MapBatch",
    "PairedData",
    "RayEngine",
    "embed_dataset",
    "fit_dataset",
    "open_dataset",
    "open_itemset",
    "open_pairs",
    "read_sample",
    "transform_dataset",
]

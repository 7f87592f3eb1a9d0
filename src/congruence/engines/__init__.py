"""Process many files on one or several machines, split by fragments and journaled: Ray, Spark, Daft, Dask."""

from congruence._utils.engine import Engine, LocalEngine, RayEngine
from congruence.engines.embed import EmbedDataSetReport, embed_dataset
from congruence.engines.fit import PairedData, fit_dataset, open_pairs
from congruence.engines.items import ItemSet, open_itemset
from congruence.engines.sample import read_sample
from congruence.engines.transform import MapBatch
from congruence.io.dataset import DataSet, Fragment, open_dataset

__all__ = [
    "DataSet",
    "EmbedDataSetReport",
    "Engine",
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
]

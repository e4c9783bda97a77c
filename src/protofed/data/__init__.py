"""Datasets, the ways to divide them among clients, and the federation that comes out."""

from protofed.data.federation import Client, Federation, federate, join
from protofed.data.loading import check_name, describe, load
from protofed.data.preparation import Preparation, Shape
from protofed.data.samples import Dataset, Samples
from protofed.data.series_encoding import SeriesEncoding
from protofed.data.sources.catalogue import DATASETS
from protofed.data.splits import SPLITS, Split
from protofed.data.tables import Column, TableEncoding
from protofed.data.text_encoding import TextEncoding, Tokenising

__all__ = [
    "DATASETS",
    "SPLITS",
    "Client",
    "Column",
    "Dataset",
    "Federation",
    "Preparation",
    "Samples",
    "SeriesEncoding",
    "Shape",
    "Split",
    "TableEncoding",
    "TextEncoding",
    "Tokenising",
    "check_name",
    "describe",
    "federate",
    "join",
    "load",
]

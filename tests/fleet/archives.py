# SPDX-License-Identifier: Apache-2.0
"""Where the tokentaps of a history archive: a folder, or a bucket of moto behind a proxy that breaks requests."""

import os
from contextlib import ExitStack
from urllib.parse import urlsplit

from pyarrow.fs import LocalFileSystem, S3FileSystem
from pyarrow.parquet import read_table

from tokentap import dataset


class Folder:
    """A folder that all tokentaps share."""

    def __init__(self, work):
        self.path, self.uri = work / "archive", f"file://{work}/archive"

    def tables(self, columns):
        """The columns of each data file."""
        if not self.path.is_dir():
            return []
        return read_all(dataset(str(self.path)), LocalFileSystem(), columns)

    def end_faults(self):
        """Nothing fails here."""

    def end(self):
        """The folder is removed with the others."""


class Bucket:
    """A bucket of which a part of the requests, `rate`, is refused, delayed, broken or not answered."""

    def __init__(self, seed, rate=0.3):
        # those of the tests of the archive; moto is installed for this run only
        from check import BUCKET, CREDENTIALS, moto
        from faulty import FaultyS3

        os.environ.update(CREDENTIALS)
        self.stack, self.uri = ExitStack(), f"s3://{BUCKET}/fleet"
        self.proxy = FaultyS3(self.stack.enter_context(moto()), rate, seed)
        # for the tokentaps, which inherit it, and for the reader
        os.environ["AWS_ENDPOINT_URL"] = self.proxy.endpoint

    def tables(self, columns):
        """The columns of each data file."""
        endpoint = urlsplit(self.proxy.endpoint)
        storage = S3FileSystem(endpoint_override=endpoint.netloc, scheme=endpoint.scheme, region=os.environ["AWS_REGION"])
        return read_all(dataset(self.uri), storage, columns)

    def end_faults(self):
        """From now on all requests are answered."""
        self.proxy.rate = 0
        print(f"  S3: {sum(self.proxy.injected.values())} faults: {dict(sorted(self.proxy.injected.items()))}")

    def end(self):
        """Ends the servers. The bucket is lost."""
        self.proxy.stop()
        self.stack.close()


def read_all(batches, filesystem, columns):
    """The columns of the files of all batches."""
    paths = (file.rpartition("://")[2] for files, _ in batches for file in files)
    return [read_table(path, columns=columns, filesystem=filesystem, partitioning=None) for path in paths]

// SPDX-License-Identifier: Apache-2.0
//! Objects under the prefix of an archive, in object storage or in a folder.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, Error, ObjectStore, ObjectStoreExt, PutMode, RetryConfig};

use super::ArchiveError;
use crate::config::without_credentials;
use crate::tls_client;

/// The time of one request. A file of 64 MiB must fit into it.
const REQUEST_TIMEOUT: &str = "300s";

/// The forms of the URI.
const FORMS: &str = "it is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER";

/// An archive's place.
#[derive(Debug, Clone)]
pub struct Storage {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Storage {
    /// The archive in `store` under `prefix`.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self { store, prefix }
    }

    /// The archive with this URI. Credentials come from the environment or the machine's metadata service, as for the
    /// tools of the cloud. Sends no request.
    ///
    /// # Errors
    /// A line for the user when the URI or the credentials are invalid, or a folder cannot be made.
    pub fn open(uri: &str) -> Result<Self, String> {
        let shown = without_credentials(uri);
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| format!("{shown:?} is not a URI: {FORMS}"))?;
        let uri = &*shown;
        if scheme == "file" {
            return folder(uri, rest);
        }
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() || rest.contains(['?', '#', '@']) {
            return Err(format!("{uri:?} is not the URI of an archive: {FORMS}"));
        }
        let prefix = Path::from_url_path(path.trim_end_matches('/')).map_err(|error| format!("{uri}: {error}"))?;
        tls_client::install_provider();
        let store = match scheme {
            "s3" | "s3a" => s3(bucket),
            "gs" => google(bucket),
            "az" => azure(bucket),
            _ => return Err(format!("{uri:?} has an unknown scheme: {FORMS}")),
        };
        Ok(Self::new(store.map_err(|error| format!("{uri}: {}", describe(&error)))?, prefix))
    }

    /// Like [`Storage::open`], for reading: a folder must exist.
    ///
    /// # Errors
    /// A line for the user.
    pub fn open_existing(uri: &str) -> Result<Self, String> {
        match uri.strip_prefix("file://") {
            Some(folder) if !std::path::Path::new(folder).is_dir() => {
                Err(format!("{}: there is no such folder", without_credentials(uri)))
            }
            _ => Self::open(uri),
        }
    }

    fn path(&self, name: &str) -> Result<Path, ArchiveError> {
        let whole = format!("{}/{name}", self.prefix);
        Path::parse(whole).map_err(|error| ArchiveError::Storage(error.into()))
    }

    /// Stores an object whose name is derived from its content, so that it may be stored twice.
    pub(super) async fn put(&self, name: &str, content: Bytes) -> Result<(), ArchiveError> {
        self.store.put(&self.path(name)?, content.into()).await?;
        Ok(())
    }

    /// Stores an object unless one has this name. Returns whether it was stored.
    ///
    /// # Errors
    /// When the outcome is unknown: the object may have been stored.
    pub(super) async fn create(&self, name: &str, content: Bytes) -> Result<bool, ArchiveError> {
        match self.store.put_opts(&self.path(name)?, content.into(), PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The content of an object, or `None` if it does not exist.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Bytes>, ArchiveError> {
        let found = match self.store.get(&self.path(name)?).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match found {
            Ok(content) => Ok(Some(content)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The names of the folders in a folder, sorted.
    pub(super) async fn folders(&self, name: &str) -> Result<Vec<String>, ArchiveError> {
        let found = self.store.list_with_delimiter(Some(&self.path(name)?)).await?;
        let mut names: Vec<String> =
            found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// The names of all objects below a folder, relative to the archive and sorted.
    pub(super) async fn names(&self, folder: &str) -> Result<Vec<String>, ArchiveError> {
        let skipped = self.prefix.as_ref().len() + usize::from(!self.prefix.as_ref().is_empty());
        let listed = self.store.list(Some(&self.path(folder)?));
        let mut names: Vec<String> =
            listed.map_ok(|meta| meta.location.as_ref()[skipped..].to_owned()).try_collect().await?;
        names.sort();
        Ok(names)
    }

    /// Checks that an archive can be written and read, and that an object which exists is not written again. Leaves an object.
    ///
    /// # Errors
    /// A line for the user.
    pub async fn probe(&self) -> Result<(), String> {
        let (name, content) = ("probe/tokentap-check", Bytes::from_static(b"check"));
        // it may exist since an earlier check
        self.create(name, content.clone()).await.map_err(|error| format!("cannot be written: {error}"))?;
        let again = self.create(name, content.clone()).await.map_err(|error| format!("cannot be written: {error}"))?;
        if again {
            return Err("does not support writes that fail if the object exists: rows could be archived twice".into());
        }
        match self.get(name).await {
            Ok(Some(found)) if found == content => Ok(()),
            Ok(_) => Err("an object that was written cannot be read".to_owned()),
            Err(error) => Err(format!("cannot be read: {error}")),
        }
    }
}

/// The archive in a folder, which is made.
fn folder(uri: &str, rest: &str) -> Result<Storage, String> {
    if !rest.starts_with('/') {
        return Err(format!("{uri:?} does not name an absolute folder: {FORMS}"));
    }
    std::fs::create_dir_all(rest).map_err(|error| format!("{uri}: {error}"))?;
    let store = LocalFileSystem::new_with_prefix(rest).map_err(|error| format!("{uri}: {}", describe(&error)))?;
    // a manifest must not survive a crash of the machine that its data files do not
    Ok(Storage::new(Arc::new(store.with_fsync(true)), Path::ROOT))
}

/// The client tries again at once only; the archiver itself tries again later, and counts it.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 2, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() }
}

fn s3(bucket: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry());
    let builder = builder.with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    // an endpoint without TLS was named on purpose
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let builder = if is_plain { builder.with_allow_http(true) } else { builder };
    Ok(Arc::new(builder.build()?))
}

fn google(bucket: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry());
    let builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    Ok(Arc::new(builder.build()?))
}

fn azure(container: &str) -> Result<Arc<dyn ObjectStore>, Error> {
    let builder = MicrosoftAzureBuilder::from_env().with_container_name(container).with_retry(retry());
    let builder = builder.with_config(AzureConfigKey::Client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    Ok(Arc::new(builder.build()?))
}

/// An error with its causes, on one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

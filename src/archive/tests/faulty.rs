// SPDX-License-Identifier: Apache-2.0
//! Object storage in memory that delays, fails, and loses the answers of operations that it carried out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// Pseudo-random numbers from a seed.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `bound` (splitmix64).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// What happens to an operation.
enum Outcome {
    Carried,
    /// It is not carried out, and fails.
    Refused,
    /// It is carried out, and fails.
    AnswerLost,
    /// It fails, and is carried out later.
    Late(Duration),
}

/// The storage. Every operation is delayed; about half of the first ones fail.
#[derive(Debug, Clone)]
pub(super) struct Faulty {
    inner: Arc<InMemory>,
    random: Arc<Mutex<Random>>,
    /// The remaining failures. Their number is limited, so that archivers end.
    failures: Arc<Mutex<u32>>,
}

impl Faulty {
    pub(super) fn new(inner: Arc<InMemory>, seed: u64, failures: u32) -> Self {
        Self { inner, random: Arc::new(Mutex::new(Random::new(seed))), failures: Arc::new(Mutex::new(failures)) }
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.lock().below(bound)
    }

    async fn outcome(&self) -> Outcome {
        let delay = Duration::from_millis(self.below(3000));
        tokio::time::sleep(delay).await;
        let mut failures = self.failures.lock();
        if *failures == 0 {
            return Outcome::Carried;
        }
        *failures -= 1;
        match self.below(6) {
            0 => Outcome::Refused,
            1 => Outcome::AnswerLost,
            2 => Outcome::Late(Duration::from_millis(self.below(20_000))),
            _ => Outcome::Carried,
        }
    }
}

fn failure() -> Error {
    Error::Generic { store: "faulty", source: "on purpose".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        match self.outcome().await {
            Outcome::Carried => self.inner.put_opts(location, payload, opts).await,
            Outcome::Refused => Err(failure()),
            Outcome::AnswerLost => {
                drop(self.inner.put_opts(location, payload, opts).await);
                Err(failure())
            }
            Outcome::Late(delay) => {
                let (inner, location) = (Arc::clone(&self.inner), location.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    drop(inner.put_opts(&location, payload, opts).await);
                });
                Err(failure())
            }
        }
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        panic!("objects are stored whole")
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        match self.outcome().await {
            Outcome::Carried => self.inner.get_opts(location, options).await,
            _ => Err(failure()),
        }
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        panic!("nothing is deleted")
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        match self.outcome().await {
            Outcome::Carried => self.inner.list_with_delimiter(prefix).await,
            _ => Err(failure()),
        }
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        panic!("nothing is copied")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

/// Storage that is empty and refuses every write.
#[derive(Debug)]
pub(super) struct Broken;

#[async_trait]
impl ObjectStore for Broken {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(failure())
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(failure())
    }

    async fn get_opts(&self, location: &Path, _: GetOptions) -> Result<GetResult> {
        Err(Error::NotFound { path: location.to_string(), source: "empty".into() })
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        panic!("nothing is deleted")
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        InMemory::new().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        InMemory::new().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(failure())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

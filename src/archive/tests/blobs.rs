// SPDX-License-Identifier: Apache-2.0
//! Pictures and large extras, which are blobs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path as Location;

use super::{HOUR, Source, archive_all, archiver, contents, path, storage};
use crate::archive::batch::LARGE_EXTRAS;
use crate::archive::{Content, Manifest, Manifests, Options, chains, verify};
use crate::images::Image;
use crate::session::{Path, PromptImages};

#[tokio::test(start_paused = true)]
async fn large_extras_are_blobs() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let large = format!("[{}]", "1,".repeat(LARGE_EXTRAS) + "1");
    let mut one = path(1);
    let mut turn = (*one.steps[0].turn).clone();
    turn.about.extras = [("routed_experts".into(), large.as_str().into()), ("small".into(), "7".into())].into();
    one.steps[0].turn = Arc::new(turn);
    source.add(0, 1, Content::Path(one));
    archive_all(&storage, source).await;
    let mut manifests = Manifests::list(&storage, chains(&storage).await.unwrap().remove(0)).await.unwrap();
    let (manifest, _) = manifests.next().await.unwrap().unwrap();
    let blob = &manifest.blobs[0];
    assert_eq!(blob.bytes, large.len() as u64);
    assert_eq!(storage.get(&format!("blobs/{}", blob.sha256)).await.unwrap().unwrap(), large.as_bytes());
    let file = storage.get(&manifest.files[0].path).await.unwrap().unwrap();
    let extras =
        format!(r#"{{"routed_experts":{{"blob_sha256":"{}","bytes":{}}},"small":7}}"#, blob.sha256, large.len());
    assert_eq!(crate::export::parquet::turn_extras(file), [extras]);
    assert_eq!(verify(&storage, |_| ()).await.unwrap().problems, Vec::<String>::new());
    inner.delete(&Location::from(format!("a/prefix/blobs/{}", blob.sha256))).await.unwrap();
    assert_eq!(verify(&storage, |_| ()).await.unwrap().problems, [format!("blobs/{}: does not exist", blob.sha256)]);
}

/// A path with these pictures in its prompt; one without bytes is a reference.
fn path_with(number: u64, images: &[Image]) -> Path {
    let mut path = path(number);
    let mut turn = (*path.steps[0].turn).clone();
    let prompt: Arc<[u32]> = vec![9; images.len()].into();
    let ranges = (0..).map(|at| at..at + 1);
    let images = images.iter().map(|image| Arc::new(image.clone())).zip(ranges);
    turn.about.images = Some(Box::new(PromptImages::new(&prompt, images)));
    turn.prompt = prompt;
    path.steps[0].turn = Arc::new(turn);
    path
}

#[tokio::test(start_paused = true)]
async fn pictures_are_blobs() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let [one, two] = [b"one".as_slice(), b"the other"].map(|content| Image::new(Bytes::copy_from_slice(content)));
    let reference = Image { bytes: None, ..Image::new(Bytes::from_static(b"unknown")) };
    source.add(0, 1, Content::Path(path_with(1, &[one.clone(), two.clone(), one.clone()])));
    source.add(0, 2, Content::Path(path_with(2, std::slice::from_ref(&one))));
    source.add(0, 3, Content::Path(path_with(3, &[one.clone(), reference])));
    archive_all(&storage, source).await;
    let mut manifests = Manifests::list(&storage, chains(&storage).await.unwrap().remove(0)).await.unwrap();
    let (manifest, _) = manifests.next().await.unwrap().unwrap();
    assert_eq!((manifest.rows, &manifest.excluded), (2, &[("image_unavailable".to_owned(), 1)].into()));
    let mut blobs = [&one, &two].map(|image| (image.digest.to_string(), image.size));
    blobs.sort();
    assert_eq!(manifest.blobs.iter().map(|blob| (blob.sha256.clone(), blob.bytes)).collect::<Vec<_>>(), blobs);
    for image in [&one, &two] {
        let name = format!("blobs/{}", image.digest);
        assert_eq!(storage.get(&name).await.unwrap(), image.bytes);
    }
    let files: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    assert_eq!(manifest.bytes(), files + one.size + two.size, "each picture counts once");
    let found = verify(&storage, |_| ()).await.unwrap();
    assert_eq!((found.bytes, found.problems), (manifest.bytes(), Vec::new()));
    let without = Manifest { blobs: manifest.blobs[..1].to_vec(), ..manifest.clone() };
    let at = Location::from(format!("a/prefix/{}", manifest.name()));
    inner.put(&at, without.to_bytes().into()).await.unwrap();
    let (problems, place) = (verify(&storage, |_| ()).await.unwrap().problems, &manifest.files[0].path);
    let lacking = format!("{place}: picture {} is not among the blobs of the manifest", manifest.blobs[1].sha256);
    assert_eq!(problems, [lacking]);
    inner.put(&at, manifest.to_bytes().into()).await.unwrap();
    let location = Location::from(format!("a/prefix/blobs/{}", two.digest));
    inner.put(&location, Bytes::from_static(b"another").into()).await.unwrap();
    let problems = verify(&storage, |_| ()).await.unwrap().problems;
    let two = two.digest;
    let expected = ["the content has another hash", "7 bytes instead of 9"].map(|text| format!("blobs/{two}: {text}"));
    assert_eq!(problems, expected);
}

#[tokio::test(start_paused = true)]
async fn blob_of_several_manifests_is_checked_once() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let one = Image::new(Bytes::from_static(b"one"));
    for number in 1..4 {
        source.add(0, number, Content::Path(path_with(number, std::slice::from_ref(&one))));
        archive_all(&storage, source.clone()).await;
    }
    let found = verify(&storage, |_| ()).await.unwrap();
    assert_eq!((found.manifests, found.unused, &found.problems), (3, 0, &Vec::new()));
    inner.delete(&Location::from(format!("a/prefix/blobs/{}", one.digest))).await.unwrap();
    let problems = verify(&storage, |_| ()).await.unwrap().problems;
    assert_eq!(problems, [format!("blobs/{}: does not exist", one.digest)]);
}

#[tokio::test(start_paused = true)]
async fn reference_takes_no_memory_of_a_batch() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let running = archiver(storage.clone(), source.clone(), Options { interval: HOUR, bytes: 100_000 }).spawn();
    for number in 1..3 {
        // a damaged entry may say any size
        let image = Image { bytes: None, size: u64::MAX, ..Image::new(vec![u8::try_from(number).unwrap()].into()) };
        source.add(0, number, Content::Path(path_with(number, &[image])));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(contents(&storage).await.0, Vec::<String>::new(), "the batch is not full");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn pictures_count_once_towards_a_full_batch() {
    let (inner, source) = (Arc::new(InMemory::new()), Source::new(1));
    let storage = storage(&inner);
    let picture = |content| Image::new(vec![content; 60_000].into());
    let running = archiver(storage.clone(), source.clone(), Options { interval: HOUR, bytes: 100_000 }).spawn();
    for (number, content) in [(1, 1), (2, 1), (3, 2)] {
        assert_eq!(contents(&storage).await.0, Vec::<String>::new());
        source.add(0, number, Content::Path(path_with(number, &[picture(content)])));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(contents(&storage).await.0.len(), 3);
    drop(running);
}

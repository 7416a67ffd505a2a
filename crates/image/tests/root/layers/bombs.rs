//! Layers cannot exceed their limits.

use std::io::{self, Read, Write as _};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use oci_hooks_image::{
    Digest, HashAlgorithm, Hasher, LayerLimit, LayerLimits, StoreError, UnpackError,
};
use tar::EntryType;

use crate::layers::archive::{Fixture, TestArchive, descriptor, gzip};

fn limit(result: Result<impl std::fmt::Debug, StoreError>) -> LayerLimit {
    match result.unwrap_err() {
        StoreError::Unpack { source: UnpackError::Limit { limit }, .. } => limit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_are_limited() {
    let limits = LayerLimits { bytes: 1 << 20, ..LayerLimits::default() };
    let fixture = Fixture::with_limits(limits);
    let archive = TestArchive::default().file("zeros", &vec![0; 2 << 20]).finish();
    let zstd = |data: &[u8]| zstd::encode_all(data, 3).unwrap();
    for result in [fixture.unpack_blob(&archive, gzip), fixture.unpack_blob(&archive, zstd)] {
        assert_eq!(limit(result), LayerLimit::Bytes(1 << 20));
        fixture.assert_no_layer();
    }
    // A hole takes no space here, but would in a copy.
    let archive = TestArchive::default()
        .pax(&[("GNU.sparse.size", b"9999999999"), ("GNU.sparse.map", b"0,0")])
        .file("hole", b"");
    assert_eq!(limit(fixture.unpack(archive)), LayerLimit::Bytes(1 << 20));
    fixture.assert_no_layer();
}

#[test]
fn blob_larger_than_the_maximum_is_not_read() {
    struct UnreadBlob;
    impl Read for UnreadBlob {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("it is read")
        }
    }
    let fixture = Fixture::with_limits(LayerLimits { bytes: 1 << 20, ..LayerLimits::default() });
    let mut blob = descriptor(b"");
    blob.size = (1 << 20) + 1;
    let result = fixture.store.unpack_layer(&blob, &Digest::of(b""), UnreadBlob);
    assert_eq!(limit(result), LayerLimit::Bytes(1 << 20));
    fixture.assert_no_layer();
}

#[test]
fn compression_ratio_is_limited() {
    let fixture = Fixture::new();
    // The ratio of the first gibibyte does not matter.
    let size = (1 << 30) + (1 << 20);
    let header = TestArchive::default().header(b"", |header| {
        header.set_path("zeros").unwrap();
        header.set_size(size);
    });
    let header = header.finish()[..512].to_vec();
    let bomb = io::Cursor::new(header).chain(io::repeat(0).take(size));
    let blob = zstd::encode_all(bomb, 1).unwrap();
    let result = fixture.store.unpack_layer(&descriptor(&blob), &Digest::of(b""), blob.as_slice());
    assert_eq!(limit(result), LayerLimit::Ratio(200));
    fixture.assert_no_layer();
}

/// Variable set in the process of this program that unpacks many entries and measures its memory.
const MEASURED: &str = "TEST_LAYERS_MEASURED";

/// Enough entries to show if each of them took memory.
const ENTRIES: u64 = 100_000;

#[test]
fn entry_count_is_limited_with_little_memory() {
    if std::env::var_os(MEASURED).is_some() {
        return unpack_many_entries();
    }
    // A separate process, because other tests use memory too.
    let mut measured = Command::new(std::env::current_exe().unwrap());
    let own_name = "layers::bombs::entry_count_is_limited_with_little_memory";
    measured.args(["--exact", own_name]).env(MEASURED, "yes");
    let output = oci_hooks_testsupport::program::run(&mut measured).success();
    assert!(output.contains("1 passed"), "{own_name} is not what this test is called: {output}");
}

fn unpack_many_entries() {
    let limits = LayerLimits { entries: ENTRIES - 1, ..LayerLimits::default() };
    let fixture = Fixture::with_limits(limits);
    let mut hasher = Hasher::new(HashAlgorithm::Sha256);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    for number in 0..ENTRIES {
        let archive = TestArchive::default().directory(&format!("{}/{}", number / 1000, number));
        let block = &archive.finish()[..512];
        hasher.update(block);
        encoder.write_all(block).unwrap();
    }
    let blob = encoder.finish().unwrap();
    let result = fixture.store.unpack_layer(&descriptor(&blob), &hasher.finish(), blob.as_slice());
    assert_eq!(limit(result), LayerLimit::Entries(ENTRIES - 1));
    fixture.assert_no_layer();
    assert!(peak_kib() < 30 << 10, "{} KiB", peak_kib());
}

fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn depth_and_names_are_limited() {
    let fixture = Fixture::new();
    let deep = "d/".repeat(1000);
    let archive = TestArchive::default().pax(&[("path", deep.as_bytes())]).file("x", b"");
    assert_eq!(limit(fixture.unpack(archive)), LayerLimit::Depth(128));
    let deep = "d/".repeat(10_000);
    for archive in [
        TestArchive::default().pax(&[("path", deep.as_bytes())]).file("x", b""),
        TestArchive::default()
            .entry(EntryType::GNULongName, "l", "", &vec![b'x'; 2 << 20])
            .file("x", b""),
        TestArchive::default().pax(&[("comment", &vec![b'x'; 2 << 20])]).file("x", b""),
        TestArchive::default()
            .file(&"x".repeat(99), b"")
            .pax(&[("path", &[b'x'; 300])])
            .file("x", b""),
    ] {
        assert_eq!(fixture.try_unpack(archive), None);
    }
}

#[test]
fn blob_with_a_wrong_digest_leaves_nothing() {
    let fixture = Fixture::new();
    let archive = TestArchive::default().file("a", b"1").finish();
    let blob = gzip(&archive);
    let good = descriptor(&blob);
    let diff_id = Digest::of(&archive);
    let unpack = |descriptor: &_, diff_id: &_, blob: &[u8]| match fixture
        .store
        .unpack_layer(descriptor, diff_id, blob)
        .unwrap_err()
    {
        StoreError::Unpack { source, .. } => {
            fixture.assert_no_layer();
            source
        }
        other => panic!("{other:?}"),
    };
    let mut other = good.clone();
    other.digest = Digest::of(b"other");
    let error = unpack(&other, &diff_id, &blob);
    assert!(matches!(error, UnpackError::Digest { what: "blob", .. }), "{error:?}");
    let error = unpack(&good, &Digest::of(b"other"), &blob);
    assert!(matches!(error, UnpackError::Digest { what: "archive", .. }), "{error:?}");
    for size in [good.size - 1, good.size + 1] {
        let mut other = good.clone();
        other.size = size;
        let error = unpack(&other, &diff_id, &blob);
        assert!(matches!(error, UnpackError::Size { .. }), "{error:?}");
    }
    let error = unpack(&good, &diff_id, &blob[..blob.len() / 2]);
    assert!(matches!(error, UnpackError::Inflate(_)), "{error:?}");
    for (magic, program) in [(&b"BZh91AY"[..], "bzip2"), (b"\xfd7zXZ\0\0", "xz")] {
        let error = unpack(&descriptor(magic), &diff_id, magic);
        assert!(matches!(error, UnpackError::Compression { name } if name == program), "{error:?}");
    }
    fixture.store.unpack_layer(&good, &diff_id, blob.as_slice()).unwrap();
}

#[test]
fn error_of_the_reader_is_reported() {
    struct BrokenReader;
    impl Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the network is gone"))
        }
    }
    let fixture = Fixture::new();
    let archive = TestArchive::default().file("a", &[7; 1000]).finish();
    let blob = gzip(&archive);
    let reader = blob[..40].chain(BrokenReader);
    let result = fixture.store.unpack_layer(&descriptor(&blob), &Digest::of(&archive), reader);
    match result.unwrap_err() {
        StoreError::Unpack { source: UnpackError::Read(error), .. } => {
            assert_eq!(error.to_string(), "the network is gone");
        }
        other => panic!("{other:?}"),
    }
}

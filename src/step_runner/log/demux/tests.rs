use jiff::Timestamp;
use proptest::prelude::*;
use serde::Deserialize;

use super::super::{Source, Stamper, Time};
use super::*;

const HEADER: &str = "2026-05-05T12:00:00.000000Z";

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Stamped(String),
    Joined { stdout: String, stderr: String },
}

#[derive(Deserialize)]
struct Vector {
    id: String,
    chunks: Vec<String>,
    #[serde(default)]
    stream_id: u8,
    expected: Expected,
}

fn demux<C: AsRef<[u8]>>(chunks: impl IntoIterator<Item = C>) -> [Vec<u8>; 2] {
    let mut demux = Demux::new();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut take = |stream, bytes: &[u8]| match stream {
        Stream::Out => out.extend_from_slice(bytes),
        Stream::Err => err.extend_from_slice(bytes),
    };
    for chunk in chunks {
        demux.write(chunk.as_ref(), &mut take);
    }
    demux.finish(take);
    [out, err]
}

fn time() -> Time {
    HEADER.parse::<Timestamp>().unwrap().into()
}

fn stamp<C: AsRef<[u8]>>(number: u8, chunks: impl IntoIterator<Item = C>) -> Vec<u8> {
    let mut stamper = Stamper::new(number, Stream::Out);
    let mut out = Vec::new();
    for chunk in chunks {
        stamper.write(chunk.as_ref(), time(), &mut out);
    }
    stamper.finish(&mut out);
    out
}

#[test]
fn recorded_lines_are_ours() {
    let vectors = include_str!("../../../../tests/data/steps/timestamps.jsonl").lines();
    for vector in vectors.map(|line| serde_json::from_str::<Vector>(line).unwrap()) {
        match vector.expected {
            Expected::Stamped(expected) => {
                let stamped = String::from_utf8(stamp(vector.stream_id, &vector.chunks)).unwrap();
                assert_eq!(stamped, expected.replace("$TS", HEADER), "{}", vector.id);
            }
            Expected::Joined { stdout, stderr } => {
                let joined = demux(&vector.chunks);
                assert_eq!(joined, [stdout, stderr].map(String::into_bytes), "{}", vector.id);
            }
        }
    }
}

#[test]
fn a_time_has_six_digits_after_the_second_always() {
    for (micros, text) in [
        (-1, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (1_709_210_096_789_000, "2024-02-29T12:34:56.789000Z"),
        (253_402_207_199_999_999, "9999-12-30T21:59:59.999999Z"),
    ] {
        let time = Time::from(Timestamp::from_microsecond(micros).unwrap());
        let mut out = Vec::new();
        Stamper::new(255, Stream::Err).write(b"\n", time, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), format!("{text} ffE \n"));
    }
}

#[test]
fn an_entry_has_the_time_it_was_begun() {
    let mut stamper = Stamper::of(Source::Step, Stream::Out);
    let mut out = Vec::new();
    stamper.write(b"a", time(), &mut out);
    assert_eq!(out, b"");
    stamper.write(b"b\nc\n", Timestamp::UNIX_EPOCH.into(), &mut out);
    let expected = format!("{HEADER} 01O ab\n1970-01-01T00:00:00.000000Z 01O c\n");
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn a_line_without_end_is_written_when_8_kib_are_there() {
    let mut stamper = Stamper::new(1, Stream::Out);
    let mut out = Vec::new();
    for _ in 0..4096 {
        stamper.write(b"xy", time(), &mut out);
    }
    assert_eq!(out, b"");
    stamper.write(b"z", time(), &mut out);
    assert_eq!(out.len(), 32 + 8192 + 2);
    stamper.write(b"end\nnext\n", time(), &mut out);
    let rest = format!("{HEADER} 01O+end\n{HEADER} 01O next\n");
    assert_eq!(&out[32 + 8192 + 2..], rest.as_bytes());
}

#[test]
fn after_the_end_of_a_command_a_line_does_not_go_on() {
    let mut stamper = Stamper::new(1, Stream::Out);
    let mut out = Vec::new();
    stamper.write(b"10%\r", time(), &mut out);
    stamper.finish(&mut out);
    stamper.write(b"next\n", time(), &mut out);
    assert_eq!(out, format!("{HEADER} 01O 10%\r\n{HEADER} 01O next\n").into_bytes());
}

#[test]
fn what_has_no_header_passes_as_it_is() {
    for text in [
        "",
        "a",
        "\n\n",
        "plain\nlines without an end",
        "2026-05-05T12:00:00.000000Z 01X not a stream\n",
        "2026-05-05T12:00:00.000000Z 01O\n",
        "2026-05-05 12:00:00.000000Z 01O a date of another kind\n",
    ] {
        assert_eq!(demux([text]), [text.as_bytes(), b""], "{text:?}");
    }
    let mixed = format!("{HEADER} 01O a\nbare\n{HEADER} 01O+b\n");
    assert_eq!(demux([mixed]), ["a\nbare\nb\n".as_bytes(), b""]);
}

#[test]
fn another_stream_does_not_go_on_with_a_line() {
    let text = format!("{HEADER} 00O a\n{HEADER} 01O+b\n{HEADER} 01E c\n{HEADER} 01O+d\n");
    assert_eq!(demux([text]), ["a\nbd\n".as_bytes(), b"c\n"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_stamped_comes_back(
        chunks in proptest::collection::vec("[ab\r\n]{0,6}|x{8190,8195}|[^a]{0,3}", 0..9),
        size in 1_usize..80,
    ) {
        let stamped = stamp(1, &chunks);
        let mut whole = chunks.concat().into_bytes();
        if !whole.is_empty() && !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
        prop_assert_eq!(&demux([&stamped]), &[whole, Vec::new()]);
        prop_assert_eq!(demux(stamped.chunks(size)), demux([&stamped]));
    }
}

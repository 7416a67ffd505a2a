use std::collections::VecDeque;

use bytes::Bytes;
use h2::server;
use oci_hooks_testsupport::program::DEADLINE;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::codegen::http::Request;
use tonic::codegen::http::uri::Authority;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Headers recorded from grpcio 1.85.1 for a socket `/tmp/wire-x.sock`: first request, second request.
const RECORDED: [&[u8]; 2] = [
    b"@\x05:path\x18/proto.StepRunner/Status@\n:authority\x11tmp%2Fwire-x.sock\x83\x86\
      @\x0ccontent-type\x10application/grpc@\x02te\x08trailers\
      @\x14grpc-accept-encoding\x17identity, deflate, gzip@\x0cgrpc-timeout\x04986m\
      @\nuser-agent0grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)",
    b"\xc4\xc3\x83\x86\xc2\xc1\xc0@\x0cgrpc-timeout\x051010m\xbf",
];

/// Default size of the header table.
const TABLE_BYTES: usize = 4096;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the bytes after they were changed in pieces of these sizes, repeated.
fn tidy_bytes(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut authorities = AuthorityFilter::new();
    let mut bytes = bytes.to_vec();
    let mut rest = &mut bytes[..];
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, more) = rest.split_at_mut(rest.len().min((*size).max(1)));
        authorities.rewrite_bytes(piece);
        rest = more;
    }
    bytes
}

/// Requests as h2's server reads them: the authority, and all other fields in order.
type SeenRequests = Vec<(Option<String>, Vec<(String, Vec<u8>)>)>;

/// Sends the bytes of a client through [`AuthorityStream`] to a server of h2, until it has read `count` requests.
fn serve_bytes(bytes: Vec<u8>, buffer: usize, count: usize) -> Result<SeenRequests, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (client, server) = tokio::io::duplex(buffer);
        let (mut answers, mut to_server) = tokio::io::split(client);
        // The server ends when its client does, after any number of requests.
        let _client = tokio::spawn(async move {
            let mut ignored = Vec::new();
            let _ = tokio::join!(to_server.write_all(&bytes), answers.read_to_end(&mut ignored));
        });
        let mut builder = server::Builder::new();
        builder.max_header_list_size(1 << 20);
        let all = async {
            let mut connection =
                builder.handshake::<_, Bytes>(AuthorityStream::new(server)).await?;
            let mut seen = Vec::new();
            let mut answers = Vec::new();
            while seen.len() < count
                && let Some(request) = connection.accept().await
            {
                let (request, answer) = request?;
                // Kept, as dropping it resets the stream.
                answers.push(answer);
                let authority = request.uri().authority().map(ToString::to_string);
                let fields = request.headers().iter();
                let fields =
                    fields.map(|(name, value)| (name.to_string(), value.as_bytes().into()));
                seen.push((authority, fields.collect()));
            }
            Ok::<_, h2::Error>(seen)
        };
        let all = tokio::time::timeout(DEADLINE, all).await;
        all.map_err(|_| "no more requests come".to_owned())?.map_err(|error| error.to_string())
    })
}

#[test]
fn client_of_the_c_library_is_supported() {
    let mut bytes = PREFACE.to_vec();
    for (block, stream) in RECORDED.into_iter().zip([1, 3]) {
        bytes.extend(frame(1, 5, stream, block));
    }
    for buffer in [1, 7, 1 << 16] {
        let seen = serve_bytes(bytes.clone(), buffer, 2).unwrap();
        let authorities: Vec<_> = seen.iter().map(|request| request.0.as_deref()).collect();
        assert_eq!(authorities, [Some("tmp-2Fwire-x.sock"); 2]);
        for (_, fields) in seen {
            let agent = ("user-agent".to_owned(), RECORDED[0][RECORDED[0].len() - 48..].to_vec());
            assert!(fields.contains(&agent), "{fields:?}");
        }
    }
}

/// Fails once h2 accepts such requests: then this module is no longer needed.
#[test]
fn h2_rejects_a_socket_path_as_authority() {
    let authority = Authority::from_static;
    assert!(std::panic::catch_unwind(|| authority("tmp%2Fwire-x.sock")).is_err());
    assert_eq!(authority("tmp-2Fwire-x.sock").host(), "tmp-2Fwire-x.sock");
}

#[test]
fn only_the_authority_value_is_changed() {
    let same = |block: &[u8]| {
        let bytes = [PREFACE, &frame(1, 4, 1, block)].concat();
        assert_eq!(tidy_bytes(&bytes, &[1]), bytes, "{block:?}");
        assert_eq!(tidy_bytes(&bytes, &[bytes.len()]), bytes);
    };
    same(b"\x01\x04ab-c");
    same(b"\x40\x05:path\x04/%2F");
    same(b"\x40\x0b:authorityx\x04a%2F");
    same(b"\x40\x09:authorit\x04a%2F");
    same(b"\x04\x04/%2F");
    // Huffman codes of the name or the value are not read.
    same(b"\x41\x84a%2F");
    same(b"\x40\x8a:authority\x04a%2F");
    // A number that never ends, or is too large.
    same(b"\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x41\x02%%");
    same(b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x41\x02%%");
    // Not a HEADERS frame.
    let data = [PREFACE, &frame(0, 0, 1, b"\x41\x02%%")].concat();
    assert_eq!(tidy_bytes(&data, &[3]), data);
    let http1 = b"POST /%2F HTTP/1.1\r\n\r\n\0\0\x04\x01\x04\0\0\0\x01\x41\x02%%";
    assert_eq!(tidy_bytes(http1, &[3]), http1);
}

#[test]
fn authority_is_found_in_every_literal_form() {
    let long = [&b"\x01\x7f\x0f"[..], &[b'%'; 127 + 15]].concat();
    for block in [
        &b"\x41\x02%/"[..],
        b"\x01\x02%/",
        b"\x11\x02%/",
        b"\x40\x0a:authority\x02%/",
        b"\x00\x0a:authority\x02%/",
        b"\x10\x0a:authority\x02%/",
        // After other fields: an index, a table size, a long literal with an index.
        b"\x82\x3f\xe1\x1f\x7f\x00\x01x\x00\x01y\x01x\x41\x02%/",
        &long,
    ] {
        for (kind, flags, before, after) in [
            (1, 0x04, &b""[..], &b""[..]),
            (1, 0x0c, b"\x02", b"%%"),
            (1, 0x2c, b"\x03\0\0\0\0%", b"A%%"),
            (1, 0x24, b"\0\0\0\0%", b""),
        ] {
            let payload = [before, block, after].concat();
            let bytes = [PREFACE, &frame(kind, flags, 1, &payload)].concat();
            for size in [1, 2, 5, bytes.len()] {
                let tidied = tidy_bytes(&bytes, &[size]);
                let block_at = bytes.len() - after.len() - block.len();
                let text = &tidied[block_at..block_at + block.len()];
                assert!(!text.contains(&b'%') && text.ends_with(b"--"), "{text:?}");
                assert_eq!(tidied[..block_at], bytes[..block_at]);
                assert_eq!(tidied[block_at + block.len()..], *after);
            }
        }
    }
}

/// A field that a client sends.
#[derive(Clone, Debug)]
enum SentField {
    /// The number in the name, the value, and the representation: indexed, not indexed, never indexed.
    Literal(u8, Vec<u8>, u8),
    /// An entry of the client's table by its age.
    Indexed(usize),
    TableSize(usize),
}

fn sent_fields() -> impl Strategy<Value = SentField> {
    let value = prop::collection::vec(prop_oneof![b'!'..=b'~', Just(b'%')], 0..90);
    prop_oneof![
        6 => (0..30_u8, value, 0..3_u8).prop_map(|(name, value, how)| SentField::Literal(name, value, how)),
        4 => (0..40_usize).prop_map(SentField::Indexed),
        1 => (0..=TABLE_BYTES).prop_map(SentField::TableSize),
    ]
}

/// A client whose header table has the limit of h2's server.
struct HpackClient {
    table: VecDeque<(Vec<u8>, Vec<u8>)>,
    limit: usize,
}

impl HpackClient {
    fn shrink(&mut self) {
        let size = |table: &VecDeque<(Vec<u8>, Vec<u8>)>| {
            table.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>()
        };
        while size(&self.table) > self.limit {
            self.table.pop_back();
        }
    }

    fn literal(&mut self, name: &[u8], value: &[u8], how: u8, block: &mut Vec<u8>) {
        block.push([0x40, 0x00, 0x10][usize::from(how)]);
        for text in [name, value] {
            number(text.len(), 0x7f, 0, block);
            block.extend(text);
        }
        if how == 0 {
            self.table.push_front((name.to_vec(), value.to_vec()));
            self.shrink();
        }
    }

    /// Encodes a request, and returns it with its fields.
    fn request(
        &mut self,
        sent: &[SentField],
        authority: &[u8],
    ) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
        let mut block = Vec::new();
        // A table size may only be changed at the start of a block.
        if let Some(SentField::TableSize(size)) = sent.first() {
            number(*size, 0x1f, 0x20, &mut block);
            self.limit = *size;
            self.shrink();
        }
        block.extend(b"\x83\x86\x84");
        match self.table.iter().position(|(name, value)| name == NAME && value == authority) {
            Some(index) => number(62 + index, 0x7f, 0x80, &mut block),
            None => self.literal(NAME, authority, 0, &mut block),
        }
        let mut fields = Vec::new();
        for sent in sent {
            match sent {
                SentField::Literal(name, value, how) => {
                    let name = format!("x-{name}");
                    self.literal(name.as_bytes(), value, *how, &mut block);
                    fields.push((name, value.clone()));
                }
                SentField::Indexed(index) => {
                    let Some((name, value)) = self.table.get(*index) else { continue };
                    if name != NAME {
                        let name = String::from_utf8(name.clone()).unwrap();
                        fields.push((name, value.clone()));
                        number(62 + index, 0x7f, 0x80, &mut block);
                    }
                }
                SentField::TableSize(_) => {}
            }
        }
        (block, fields)
    }
}

fn number(value: usize, mask: u8, first: u8, out: &mut Vec<u8>) {
    let most = usize::from(mask);
    if value < most {
        out.push(first | u8::try_from(value).unwrap());
        return;
    }
    out.push(first | mask);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(0x80 | u8::try_from(rest & 0x7f).unwrap());
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// Splits a block into frames, with padding and priority.
fn frames(block: &[u8], stream: u32, cut: usize, padding: u8, has_priority: bool) -> Vec<u8> {
    let (first, more) = block.split_at(cut.min(block.len()));
    let mut payload = vec![padding];
    if has_priority {
        payload.extend([0, 0, 0, 0, 1]);
    }
    payload.extend(first);
    payload.resize(payload.len() + usize::from(padding), 0);
    let priority = if has_priority { 0x20 } else { 0 };
    let mut bytes = frame(1, 0x08 | 0x01 | priority, stream, &payload);
    let (second, third) = more.split_at(more.len() / 2);
    bytes.extend(frame(9, 0, stream, second));
    bytes.extend(frame(9, 4, stream, third));
    bytes
}

fn sort_fields(mut fields: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
}

proptest! {
    /// Changed authorities keep the size of their entries in the HPACK table, so that client and
    /// server drop the same entries, and all other fields arrive as they were sent.
    #[test]
    fn h2_receives_all_other_fields_unchanged(
        requests in prop::collection::vec(
            (prop::collection::vec(sent_fields(), 0..25), "[a-z%/:@.]{1,40}", 0..200_usize, 0..9_u8, any::<bool>()),
            1..9,
        ),
        buffer in 1..3000_usize,
    ) {
        let mut client = HpackClient { table: VecDeque::new(), limit: TABLE_BYTES };
        let mut bytes = PREFACE.to_vec();
        let mut expected = Vec::new();
        for (at, (sent, authority, cut, padding, has_priority)) in requests.iter().enumerate() {
            let (block, fields) = client.request(sent, authority.as_bytes());
            let stream = u32::try_from(2 * at + 1).unwrap();
            bytes.extend(frames(&block, stream, *cut, *padding, *has_priority));
            let is_of_host = |c: char| c.is_ascii_alphabetic() || c == '.';
            let authority: String =
                authority.chars().map(|c| if is_of_host(c) { c } else { '-' }).collect();
            expected.push((Some(authority), sort_fields(fields)));
        }
        let seen = serve_bytes(bytes, buffer, requests.len()).map_err(TestCaseError::fail)?;
        let seen: Vec<_> = seen.into_iter().map(|(authority, fields)| (authority, sort_fields(fields))).collect();
        prop_assert_eq!(seen, expected);
    }

    /// For any bytes: no panic, the same length, and the same result for any split.
    #[test]
    fn arbitrary_bytes_pass_through(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        blocks in prop::collection::vec((0..12_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 0..60)), 0..9),
        sizes in prop::collection::vec(1..40_usize, 1..9),
    ) {
        let mut framed = PREFACE.to_vec();
        for (kind, flags, payload) in &blocks {
            framed.extend(frame(*kind, *flags, 1, payload));
        }
        framed.extend(&bytes);
        for bytes in [framed, [PREFACE, &bytes].concat(), bytes] {
            let whole = tidy_bytes(&bytes, &[bytes.len()]);
            prop_assert_eq!(whole.len(), bytes.len());
            prop_assert_eq!(&tidy_bytes(&bytes, &sizes), &whole);
            for (new, old) in whole.iter().zip(&bytes) {
                prop_assert!(new == old || (*new == b'-' && !is_of_host(*old)));
            }
            // Changing the bytes a second time has no effect.
            prop_assert_eq!(&tidy_bytes(&whole, &[bytes.len()]), &whole);
        }
    }
}

/// h2's own client encodes strings as Huffman codes, which are not changed.
#[test]
fn requests_of_h2_are_unchanged() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bytes = runtime.block_on(async {
        let (client, mut wire) = tokio::io::duplex(1 << 20);
        wire.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let (sender, connection) = h2::client::handshake(client).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut sender = sender.ready().await.unwrap();
        let mut requests = Vec::new();
        for number in 0..200 {
            let request = Request::builder()
                .uri(format!("http://user%25@host-{}:80/{number}%2F", number % 7))
                .header(format!("x-{}", number % 90), "%2F".repeat(number % 50))
                .body(())
                .unwrap();
            requests.push(sender.send_request(request, true).unwrap());
        }
        let mut bytes = vec![0; 9000];
        wire.read_exact(&mut bytes).await.unwrap();
        connection.abort();
        bytes
    });
    assert_eq!(tidy_bytes(&bytes, &[1000]), bytes);
}

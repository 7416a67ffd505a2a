//! Requests with a protobuf field whose number GitLab has not published: the time limit in
//! [`RunRequest`], and the job id in [`CancelRequest`]. In a received request, the field is
//! recognized by its content, or as the only one that it can be.

use std::collections::BTreeMap;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{
    DecodeContext, WireType, btree_map, bytes, decode_key, decode_varint, message, skip_field,
    string,
};
use prost::{DecodeError, Message};
use prost_types::Duration;

use super::generated::proto::{Job, Masking};

/// Number with which [`RunRequest::timeout`] is sent: the highest field number, so that it does not collide
/// with GitLab's.
pub const TIMEOUT: u32 = (1 << 29) - 1;

/// Number of [`CancelRequest::id`] in the branch `avonbertoldi/grpc-endpoint` of GitLab's step-runner, of
/// January 2024, the last public version of this message.
const ID: u32 = 1;

/// Maximum length of an encoded duration: two keys of one byte, two numbers of ten.
const MAX_DURATION_BYTES: usize = 22;

/// Seconds in 10 000 years, the maximum of a duration.
const MAX_SECONDS: i64 = 315_576_000_000;

/// A request to run steps.
///
/// Since its release 18.9, GitLab's runner sends a time limit in a field whose number is in no
/// public source. The field is identified by its type: it is the only unknown field that parses as
/// a duration. Strings, maps and messages of strings do not, because they begin with another byte.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunRequest {
    /// Chosen by the client; requests with the same id refer to the same job.
    pub id: String,
    pub work_dir: String,
    pub env: BTreeMap<String, String>,
    /// Phrases and token prefixes to mask. The field is in GitLab's design document, but not in
    /// GitLab's requests.
    pub masking: Option<Masking>,
    pub job: Option<Job>,
    /// Two YAML documents: specification and definition.
    pub steps: String,
    /// Time limit of the job. It is sent as field [`TIMEOUT`], which is not GitLab's, and which
    /// GitLab's step-runner skips.
    pub timeout: Option<Duration>,
}

/// The field whose number is not public, as far as identified: none, one with its number and value,
/// or several candidates.
#[derive(Default)]
enum Candidates<T> {
    #[default]
    None,
    One(u32, T),
    Several,
}

impl<T> Candidates<T> {
    fn add(&mut self, number: u32, value: T) {
        *self = match self {
            Candidates::One(known, _) if *known != number => Candidates::Several,
            Candidates::Several => Candidates::Several,
            // If a field occurs several times, the last one counts.
            Candidates::None | Candidates::One(..) => Candidates::One(number, value),
        };
    }
}

impl Message for RunRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for (number, text) in [(1, &self.id), (2, &self.work_dir)] {
            if !text.is_empty() {
                string::encode(number, text, buf);
            }
        }
        let (encode, length) = (string::encode, string::encoded_len);
        btree_map::encode(encode, length, encode, length, 3, &self.env, buf);
        if let Some(masking) = &self.masking {
            message::encode(4, masking, buf);
        }
        if let Some(job) = &self.job {
            message::encode(5, job, buf);
        }
        if !self.steps.is_empty() {
            string::encode(6, &self.steps, buf);
        }
        if let Some(timeout) = &self.timeout {
            message::encode(TIMEOUT, timeout, buf);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            1 => string::merge(wire_type, &mut self.id, buf, ctx),
            2 => string::merge(wire_type, &mut self.work_dir, buf, ctx),
            3 => btree_map::merge(string::merge, string::merge, &mut self.env, buf, ctx),
            4 => message::merge(wire_type, self.masking.get_or_insert_default(), buf, ctx),
            5 => message::merge(wire_type, self.job.get_or_insert_default(), buf, ctx),
            6 => string::merge(wire_type, &mut self.steps, buf, ctx),
            _ => skip_field(wire_type, number, buf, ctx),
        }
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        let ctx = DecodeContext::default();
        let mut found = Candidates::default();
        while buf.has_remaining() {
            let (number, wire_type) = decode_key(&mut buf)?;
            // GitLab's requests have no field 4, so it may be the time limit.
            let is_known = matches!(number, 1..=3 | 5 | 6);
            if is_known || wire_type != WireType::LengthDelimited {
                self.merge_field(number, wire_type, &mut buf, ctx.clone())?;
                continue;
            }
            let mut value = Vec::new();
            bytes::merge(wire_type, &mut value, &mut buf, ctx.clone())?;
            match duration(&value) {
                Some(duration) => found.add(number, duration),
                None if number == 4 => self.masking.get_or_insert_default().merge(&value[..])?,
                None => {}
            }
        }
        match found {
            Candidates::None => {}
            Candidates::One(_, duration) => self.timeout = Some(duration),
            Candidates::Several => self.timeout = None,
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let text = |number, text: &String| match text.is_empty() {
            true => 0,
            false => string::encoded_len(number, text),
        };
        let length = string::encoded_len;
        text(1, &self.id)
            + text(2, &self.work_dir)
            + btree_map::encoded_len(length, length, 3, &self.env)
            + self.masking.as_ref().map_or(0, |masking| message::encoded_len(4, masking))
            + self.job.as_ref().map_or(0, |job| message::encoded_len(5, job))
            + text(6, &self.steps)
            + self.timeout.as_ref().map_or(0, |timeout| message::encoded_len(TIMEOUT, timeout))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Reads a nonzero duration from the whole of `bytes`: seconds and nanoseconds, each at most once and in
/// this order.
fn duration(mut bytes: &[u8]) -> Option<Duration> {
    if bytes.is_empty() || bytes.len() > MAX_DURATION_BYTES {
        return None;
    }
    let mut parts = [0_i64; 2];
    let mut least = 1;
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        if wire_type != WireType::Varint || !(least..=2).contains(&number) {
            return None;
        }
        let part = if number == 1 { 0 } else { 1 };
        parts[part] = decode_varint(&mut bytes).ok()?.cast_signed();
        least = number + 1;
    }
    let [seconds, nanos] = parts;
    let nanos = i32::try_from(nanos).ok()?;
    let is_valid = (0..=MAX_SECONDS).contains(&seconds) && (0..1_000_000_000).contains(&nanos);
    (is_valid && (seconds, nanos) != (0, 0)).then_some(Duration { seconds, nanos })
}

/// A request to cancel a job.
///
/// The source of the current message is not public; the runner's tests show a single string field, `id`. It
/// is read from the field with its former number, or else from the only field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CancelRequest {
    /// Id of the job; empty if several fields may be the id, or the id is not UTF-8.
    pub id: String,
}

impl Message for CancelRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if !self.id.is_empty() {
            string::encode(ID, &self.id, buf);
        }
    }

    fn merge_field(
        &mut self,
        number: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match number {
            ID => string::merge(wire_type, &mut self.id, buf, ctx),
            _ => skip_field(wire_type, number, buf, ctx),
        }
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        let ctx = DecodeContext::default();
        let mut others = Candidates::default();
        while buf.has_remaining() {
            let (number, wire_type) = decode_key(&mut buf)?;
            if number == ID || wire_type != WireType::LengthDelimited {
                self.merge_field(number, wire_type, &mut buf, ctx.clone())?;
                continue;
            }
            let mut value = Vec::new();
            bytes::merge(wire_type, &mut value, &mut buf, ctx.clone())?;
            others.add(number, value);
        }
        if self.id.is_empty()
            && let Candidates::One(_, value) = others
        {
            self.id = String::from_utf8(value).unwrap_or_default();
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        if self.id.is_empty() { 0 } else { string::encoded_len(ID, &self.id) }
    }

    fn clear(&mut self) {
        self.id.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RunRequest {
        RunRequest {
            id: "1".to_owned(),
            work_dir: "/w".to_owned(),
            env: BTreeMap::from([
                ("A".to_owned(), "1".to_owned()),
                ("B".to_owned(), String::new()),
            ]),
            masking: Some(Masking { phrases: vec!["x".to_owned()], token_prefixes: Vec::new() }),
            job: Some(Job { build_dir: "/b".to_owned(), ..Job::default() }),
            steps: "{}\n---\nrun: []".to_owned(),
            timeout: None,
        }
    }

    /// Returns the encoded request with additional fields.
    fn with(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut message = request().encode_to_vec();
        for (number, value) in fields {
            bytes::encode(*number, &value.to_vec(), &mut message);
        }
        message
    }

    fn timeout(fields: &[(u32, &[u8])]) -> Option<(i64, i32)> {
        let decoded = RunRequest::decode(&with(fields)[..]).unwrap();
        let timeout = decoded.timeout.map(|timeout| (timeout.seconds, timeout.nanos));
        assert_eq!(RunRequest { timeout: None, ..decoded }, request());
        timeout
    }

    #[test]
    fn encoded_request_decodes_to_the_same() {
        let whole = RunRequest { timeout: Some(Duration { seconds: 3600, nanos: 5 }), ..request() };
        for request in [RunRequest::default(), request(), whole] {
            let bytes = request.encode_to_vec();
            assert_eq!(bytes.len(), request.encoded_len());
            assert_eq!(RunRequest::decode(&bytes[..]).unwrap(), request);
        }
    }

    #[test]
    fn duration_is_the_time_limit_whatever_its_field_number() {
        let hour = Duration { seconds: 3600, nanos: 500_000_000 }.encode_to_vec();
        for number in [4, 7, 8, 15, 16, 100, TIMEOUT] {
            assert_eq!(timeout(&[(number, &hour)]), Some((3600, 500_000_000)), "{number}");
            assert_eq!(timeout(&[(number, &[8, 1]), (number, &hour)]), Some((3600, 500_000_000)));
            assert!(timeout(&[(number, &hour), (90, b"later"), (91, b"")]).is_some());
        }
        assert_eq!(timeout(&[(7, &[0x10, 1])]), Some((0, 1)));
    }

    #[test]
    fn ambiguous_durations_mean_no_time_limit() {
        let hour = Duration { seconds: 3600, nanos: 0 }.encode_to_vec();
        let negative = Duration { seconds: -1, nanos: 0 }.encode_to_vec();
        let second = Duration { seconds: 0, nanos: 1_000_000_000 }.encode_to_vec();
        let ages = Duration { seconds: MAX_SECONDS + 1, nanos: 0 }.encode_to_vec();
        assert_eq!(timeout(&[(7, &hour), (8, &hour)]), None);
        assert_eq!(timeout(&[(7, &hour), (8, &hour), (7, &hour)]), None);
        for none in [
            &b""[..],
            b"later",
            b"1h",
            &negative,
            &second,
            &ages,
            &[8],
            &[8, 0x80],
            &[8, 1, 8, 1],
            &[0x10, 1, 8, 1],
            &[8, 1, 0x18, 1],
            &[8, 1, 0x10, 1, 0],
            // A string of one byte, which other messages begin with.
            &[0x0a, 1, b'x'],
        ] {
            assert_eq!(timeout(&[(7, none)]), None, "{none:?}");
        }
    }

    #[test]
    fn masking_and_known_fields_are_not_durations() {
        let masking = Masking { phrases: Vec::new(), token_prefixes: vec!["t".to_owned()] };
        let message = with(&[(4, &masking.encode_to_vec()), (6, &[8, 1])]);
        let decoded = RunRequest::decode(&message[..]).unwrap();
        assert_eq!(decoded.masking.unwrap().token_prefixes, ["t"]);
        assert_eq!((decoded.steps.as_str(), decoded.timeout), ("\u{8}\u{1}", None));
    }

    fn id(fields: &[(u32, &[u8])]) -> String {
        let mut message = Vec::new();
        for (number, value) in fields {
            bytes::encode(*number, &value.to_vec(), &mut message);
        }
        CancelRequest::decode(&message[..]).unwrap().id
    }

    #[test]
    fn only_text_field_is_the_id_whatever_its_number() {
        for number in [1, 2, 15, 16, 4711, (1 << 29) - 1] {
            assert_eq!(id(&[(number, b"job")]), "job", "{number}");
            assert_eq!(id(&[(number, b"old"), (number, b"job")]), "job", "{number}");
        }
        assert_eq!(id(&[(2, b"because"), (1, b"job"), (3, b"x")]), "job");
    }

    #[test]
    fn ambiguous_texts_mean_no_id() {
        assert_eq!(id(&[]), "");
        assert_eq!(id(&[(2, b"a"), (3, b"a")]), "");
        assert_eq!(id(&[(2, b"a"), (3, b"b"), (2, b"c")]), "");
        assert_eq!(id(&[(2, b"\xff")]), "");
        // A number is not an id.
        assert_eq!(CancelRequest::decode(&[0x10, 5][..]).unwrap().id, "");
        for broken in [&[0x0a, 5, b'a'][..], &[0x0a], &[0x80], &[0x0b, 1]] {
            CancelRequest::decode(broken).unwrap_err();
        }
    }

    #[test]
    fn cancel_request_is_encoded_like_its_first_declaration() {
        let request = CancelRequest { id: "7".to_owned() };
        assert_eq!(request.encode_to_vec(), [0x0a, 1, b'7']);
        assert!(CancelRequest::default().encode_to_vec().is_empty());
    }
}

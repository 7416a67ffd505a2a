//! Benchmarks masking of a build log with 50 phrases, compared with copying it; also stamping, which
//! follows masking.
//!
//! `cargo bench -p step-runner --bench steps_masking`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use step_runner::log::{LogStamper, LogStream, LogTime, MASK, Masker, Masking};

const TEXT_BYTES: usize = 64 << 20;

/// Capacity of a pipe.
const WRITE_BYTES: usize = 64 << 10;

const RUNS: usize = 9;

/// Number of secrets of a job with very many variables.
const VARIABLES: usize = 4000;

/// Minimum throughput of masking in MB/s.
const FLOOR: f64 = 500.0;

fn main() {
    let mut random = FixedRandom(1);
    let secrets: Vec<_> = (0..50).map(|_| random.word(20)).collect();
    let text = text(&mut random, &secrets);
    let size = text.len();
    println!("{} MiB in writes of {} KiB; medians of {RUNS}", size >> 20, WRITE_BYTES >> 10);

    let mut out = Vec::with_capacity(2 * WRITE_BYTES);
    let copy = rate(&text, &mut out, |chunk, out| out.extend_from_slice(chunk));
    println!("copied:                               {copy:6.0} MB/s");

    let exact = Masking { phrases: secrets.clone(), ..Masking::default() };
    let mut forms = Masking::default();
    secrets.iter().for_each(|secret| forms.add_secret(secret));
    let phrases = forms.phrases.len();
    let mut masker = Masker::new(&exact).unwrap();
    masker.write(&text, &mut out);
    let masks = out.windows(MASK.len()).filter(|window| *window == MASK).count();
    println!("{masks} masks in it");

    let mut masker = Masker::new(&exact).unwrap();
    let masked = rate(&text, &mut out, |chunk, out| masker.write(chunk, out));
    println!(
        "masked, 50 phrases:                   {masked:6.0} MB/s, 1/{:.1} of a copy",
        copy / masked
    );
    let mut masker = Masker::new(&forms).unwrap();
    let all = rate(&text, &mut out, |chunk, out| masker.write(chunk, out));
    println!("masked, 50 secrets in {phrases} forms:      {all:6.0} MB/s, 1/{:.1}", copy / all);
    let mut stamper = LogStamper::new(1, LogStream::Out);
    let stamped = rate(&text, &mut out, |chunk, out| stamper.write(chunk, LogTime::now(), out));
    println!("stamped:                              {stamped:6.0} MB/s, 1/{:.1}", copy / stamped);

    let start = Instant::now();
    black_box(Masker::new(&forms).unwrap());
    println!("to compile {phrases} forms: {:?}", start.elapsed());
    let variables: Vec<_> = (0..VARIABLES).map(|_| random.word(32)).collect();
    let start = Instant::now();
    let mut forms = Masking::default();
    variables.iter().for_each(|secret| forms.add_secret(secret));
    black_box(Masker::new(&forms).unwrap());
    println!("to compile {VARIABLES} secrets of 32 bytes: {:.2?}", start.elapsed());
    assert!(masked >= FLOOR, "less than {FLOOR} MB/s");
}

/// Returns the throughput of `work` in MB/s.
fn rate(text: &[u8], out: &mut Vec<u8>, mut work: impl FnMut(&[u8], &mut Vec<u8>)) -> f64 {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for chunk in text.chunks(WRITE_BYTES) {
                out.clear();
                work(chunk, out);
                black_box(&out);
            }
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    text.len() as f64 / 1e6 / times[RUNS / 2].as_secs_f64()
}

/// Returns typical output of builds and tests, with a secret in one of a thousand lines.
fn text(random: &mut FixedRandom, secrets: &[String]) -> Vec<u8> {
    let mut text = Vec::with_capacity(TEXT_BYTES + 200);
    while text.len() < TEXT_BYTES {
        let (name, number) = (random.word(8).to_lowercase(), random.next_below(10_000));
        let line = match random.next_below(1000) {
            0 => format!(
                "$ curl -H 'Authorization: {}' https://api.example.com\n",
                secrets[number % 50]
            ),
            1..200 => format!("   Compiling {name} v0.{}.{}\n", number % 90, number % 7),
            200..400 => format!("test {name}::tests::returns_the_{name}_of_a_request ... ok\n"),
            400..600 => format!("npm warn deprecated {name}@{number}: use {name}-next instead\n"),
            600..700 => format!(
                "#{number} 0.{number} Get:1 http://mirror.example.com/debian bookworm/main amd64 {name} all [{number} kB]\n"
            ),
            700..800 => format!(
                "2026-05-05T12:00:00Z INFO  server{{id={number}}}: GET /v1/{name}?page={number}&sort=asc 200\n"
            ),
            800..900 => format!(
                "\u{1b}[32m+\u{1b}[0m src/{name}/mod.rs | {number} {}\n",
                "+".repeat(number % 40)
            ),
            _ => format!(
                "sha256:{}{}: Pull complete\n",
                random.word(32).to_lowercase(),
                random.word(32).to_lowercase()
            ),
        };
        text.extend_from_slice(line.as_bytes());
    }
    text
}

/// Deterministic random numbers.
struct FixedRandom(u64);

impl FixedRandom {
    fn next_below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn word(&mut self, length: usize) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        (0..length).map(|_| char::from(LETTERS[self.next_below(64)])).collect()
    }
}

use std::fs;
use std::future::Future;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread;

use oci_hooks_testsupport::program::DEADLINE;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::super::LogFollower;
use super::*;

const LIMIT: u64 = 1 << 30;

fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn log(directory: &TempDir, limit_bytes: u64) -> StepLog {
    let masking = Masking { phrases: vec!["secret".to_owned()], ..Masking::default() };
    StepLog::create(&directory.path().join("log"), &masking, limit_bytes).unwrap()
}

fn content(directory: &TempDir) -> String {
    fs::read_to_string(directory.path().join("log")).unwrap()
}

/// Returns the lines of a file without their headers.
fn messages(content: &str) -> String {
    content.lines().map(|line| format!("{}\n", &line[32..])).collect()
}

fn step(log: &mut StepLog, text: &str) {
    log.write(OutputSource::Step, LogStream::Out, text.as_bytes());
}

/// Waits for a future, with a time limit.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = Runtime::new().unwrap();
    runtime
        .block_on(async { tokio::time::timeout(DEADLINE, future).await })
        .expect("it happens in time")
}

async fn rest(mut follower: LogFollower) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = follower.next().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn each_stream_is_masked_and_stamped_separately() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    log.write(OutputSource::Runner, LogStream::Out, b"Running step name=a\n");
    log.write(OutputSource::Step, LogStream::Out, b"the sec");
    log.write(OutputSource::Step, LogStream::Err, b"oh\n");
    log.write(OutputSource::Step, LogStream::Out, b"ret\nend");
    drop(log);
    let content = content(&directory);
    let lines: Vec<_> = content.lines().map(|line| &line[27..]).collect();
    let expected = [" 00O Running step name=a", " 01E oh", " 01O the [MASKED]", " 01O end"];
    assert_eq!(lines, expected);
}

#[test]
fn log_file_is_private_and_always_new() {
    let directory = directory();
    drop(log(&directory, LIMIT));
    let path = directory.path().join("log");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(StepLog::create(&path, &Masking::default(), LIMIT).is_err());
    let link = directory.path().join("link");
    symlink(directory.path().join("target"), &link).unwrap();
    let error = StepLog::create(&link, &Masking::default(), LIMIT).err().unwrap().to_string();
    assert!(error.starts_with("cannot create /dev/shm/"), "{error}");
    assert!(!directory.path().join("target").exists());
}

#[test]
fn secret_is_in_the_log_file_in_no_form() {
    const CANARY: &str = "c4n4ry\"value/with spaces";
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    log.mask(CANARY);
    for form in super::super::secret_forms(CANARY) {
        for at in 0..=form.len() {
            step(&mut log, &form[..at]);
            step(&mut log, &form[at..]);
            step(&mut log, "\n");
        }
    }
    for form in super::super::loose_forms(CANARY).iter().map(|form| form.to_uppercase()) {
        for at in 1..form.len() {
            step(&mut log, &form[..at]);
            step(&mut log, "\r\n");
            step(&mut log, &form[at..]);
            step(&mut log, "\n");
        }
    }
    drop(log);
    let content = content(&directory);
    assert!(content.lines().all(|line| line.ends_with("O [MASKED]")), "{content}");
}

#[test]
fn log_can_be_read_from_every_offset() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    step(&mut log, "one secret\n\n10%\r20%\rdone\r\n");
    log.write(OutputSource::Step, LogStream::Err, b"\xff\x00 no newline");
    let reader = log.reader();
    drop(log);
    let whole = fs::read(directory.path().join("log")).unwrap();
    assert_eq!(reader.length(), whole.len() as u64);
    wait(async {
        for offset in 0..=whole.len() {
            assert_eq!(rest(reader.follow(offset as u64)).await, &whole[offset..]);
        }
        assert_eq!(rest(reader.follow(u64::MAX)).await, b"");
    });
}

#[test]
fn hundred_followers_read_while_the_log_is_written() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    let reader = log.reader();
    wait(async {
        // The first followers wait before the first byte is written; each follower starts at a higher
        // offset.
        let follow = |number: u64| tokio::spawn(rest(reader.follow(number * 100)));
        let followers: Vec<_> = (0..50).map(follow).collect();
        let writer = thread::spawn(move || {
            for number in 0..3000 {
                step(&mut log, &format!("line {number} with a secret and some more\n"));
            }
            drop(log);
        });
        let later: Vec<_> = (50..100).map(follow).collect();
        let mut read = Vec::new();
        for follower in followers.into_iter().chain(later) {
            read.push(follower.await.unwrap());
        }
        writer.join().unwrap();
        let whole = fs::read(directory.path().join("log")).unwrap();
        assert!(whole.len() > 3 * 64 * 1024);
        for (read, number) in read.iter().zip(0..) {
            assert!(*read == whole[number * 100..], "follower {number}");
        }
    });
}

#[test]
fn follower_gets_a_line_before_the_next_is_written() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    let mut follower = log.reader().follow(0);
    wait(async {
        for number in 0..100 {
            step(&mut log, &format!("{number}\n"));
            let line = follower.next().await.unwrap().unwrap();
            assert!(line.ends_with(format!("O {number}\n").as_bytes()));
        }
        drop(log);
        assert_eq!(follower.next().await.unwrap(), None);
        assert_eq!(follower.next().await.unwrap(), None);
    });
}

#[test]
fn end_of_a_command_releases_held_back_output() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    step(&mut log, "a prompt: sec");
    assert_eq!(content(&directory), "");
    log.flush();
    assert_eq!(messages(&content(&directory)), "a prompt: sec\n");
    step(&mut log, "ret\n");
    assert_eq!(messages(&content(&directory)), "a prompt: sec\nret\n");
}

#[test]
fn exceeded_limit_is_reported_once_in_the_log() {
    let directory = directory();
    let mut log = log(&directory, 200);
    for number in 0..100 {
        step(&mut log, &format!("line {number}\nand another\n"));
        log.flush();
    }
    log.mask("whatever");
    drop(log);
    let content = content(&directory);
    let text = messages(&content);
    let end = "step-runner: log truncated: limit of 200 bytes reached\n";
    assert_eq!(text, format!("line 0\nand another\nline 1\nand another\n{end}"));
    assert!(content.lines().last().unwrap()[27..].starts_with(" 00E "));
}

#[test]
fn log_of_exactly_the_limit_is_complete() {
    let directory = directory();
    let mut log = log(&directory, 2 * 34);
    step(&mut log, "a\nb\n");
    drop(log);
    assert_eq!(messages(&content(&directory)), "a\nb\n");
}

#[test]
fn full_disk_ends_the_log_but_not_the_job() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    // Writing to a read-only file fails as on a full disk, only with another error code.
    step(&mut log, "kept\n");
    let writable = log.file.clone();
    log.file = Arc::new(File::open(directory.path().join("log")).unwrap());
    let reader = log.reader();
    step(&mut log, "lost\n");
    step(&mut log, "lost too\n");
    log.flush();
    log.file = writable;
    step(&mut log, "still lost\n");
    drop(log);
    let text = messages(&content(&directory));
    let end = "step-runner: log truncated: write error: Bad file descriptor";
    assert_eq!(text, format!("kept\n{end} (os error 9)\n"));
    assert_eq!(wait(rest(reader.follow(0))), content(&directory).as_bytes());
}

#[test]
fn too_many_secrets_end_the_log() {
    let directory = directory();
    let mut log = log(&directory, LIMIT);
    let huge = "no blanks".repeat(600_000);
    log.mask(&huge);
    step(&mut log, &huge);
    drop(log);
    let end = "log truncated: too many secrets to mask (limit 4 MiB in total)\n";
    assert_eq!(messages(&content(&directory)), format!("step-runner: {end}"));
}

#[test]
fn plain_log_has_every_byte_and_a_final_line_break() {
    let directory = directory();
    let mut log = log(&directory, LIMIT).in_format(LogFormat::Plain);
    log.write(OutputSource::Runner, LogStream::Out, b"Running step name=a\n");
    log.write(OutputSource::Step, LogStream::Out, b"a\r\n\n \xff sec");
    log.write(OutputSource::Step, LogStream::Err, b"oh ");
    log.write(OutputSource::Step, LogStream::Out, b"ret");
    log.flush();
    log.flush();
    log.write(OutputSource::Step, LogStream::Out, &[b'x'; 20_000]);
    drop(log);
    let mut expected = b"Running step name=a\na\r\n\n \xff oh [MASKED]\n".to_vec();
    expected.extend([b'x'; 20_000]);
    expected.push(b'\n');
    assert!(fs::read(directory.path().join("log")).unwrap() == expected);
}

#[test]
fn truncated_plain_log_ends_with_a_message_line() {
    for (written, kept) in
        [(&["ab", "c\ndef"][..], "abc\n"), (&["ab", "cdefg"], "ab\n"), (&["ab\n", "cdefg"], "ab\n")]
    {
        let directory = directory();
        let mut log = log(&directory, 5).in_format(LogFormat::Plain);
        for text in written {
            step(&mut log, text);
        }
        drop(log);
        let expected = format!("{kept}step-runner: log truncated: limit of 5 bytes reached\n");
        assert_eq!(content(&directory), expected);
    }
}

//! Many files, and large ones.

use std::fs;

use super::Ends;
use super::agents::{Agent, run};
use crate::container_hook::kubernetes::agent::Session;
use crate::sys::init::frames::files::Scope;
use crate::sys::removal::remove_tree;

/// The most memory of an agent: 5 MB.
const AGENT_KIB: u64 = 5_000_000 / 1024;

fn exchange(directories: usize, files: usize) {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::in_memory());
        let mut session = Session::new(&agent);
        for directory in 0..directories {
            let directory = ends.host(&format!("directory-{directory}"));
            fs::create_dir(&directory).unwrap();
            for file in 0..files {
                fs::write(directory.join(format!("file-{file}.txt")), "x").unwrap();
            }
        }
        let count = (directories * (files + 1)) as u64;
        let summary = ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(summary.written, count);
        assert_eq!(ends.put(&mut session, &Scope::all()).await.unwrap().written, 0);
        assert_eq!(ends.get(&mut session, &Scope::all()).await.unwrap().written, 0);
        remove_tree(&ends.host("")).unwrap();
        fs::create_dir(ends.host("")).unwrap();
        ends.record().forget().unwrap();
        assert_eq!(ends.get(&mut session, &Scope::all()).await.unwrap().written, count);
        assert!(agent.peak_kib() < AGENT_KIB, "{} KiB", agent.peak_kib());
        let has = fs::read_dir(ends.host("directory-0")).unwrap().count();
        assert_eq!(has, files);
    });
}

#[test]
fn ten_thousand_files_in_many_directories() {
    exchange(100, 100);
}

#[test]
fn ten_thousand_files_in_one_directory() {
    exchange(1, 10_000);
}

#[test]
fn a_hundred_thousand_files_in_one_directory() {
    exchange(1, 100_000);
}

#[test]
fn large_files_need_little_memory() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::in_memory());
        let mut session = Session::new(&agent);
        let length = 200 << 20;
        fs::File::create(ends.host("large")).unwrap().set_len(length).unwrap();
        ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(fs::metadata(ends.container("large")).unwrap().len(), length);
        fs::rename(ends.container("large"), ends.container("other")).unwrap();
        ends.get(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(fs::metadata(ends.host("other")).unwrap().len(), length);
        assert!(!ends.host("large").exists());
        assert!(agent.peak_kib() < AGENT_KIB, "{} KiB", agent.peak_kib());
    });
}

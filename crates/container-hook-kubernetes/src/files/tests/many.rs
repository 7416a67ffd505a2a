//! Many files, and large ones.

use std::fs;

use oci_hooks_host::removal::remove_tree;
use oci_hooks_init::frames::files::FileScope;

use super::ExchangeDirs;
use crate::agent::AgentSession;
use crate::agent::testing::{TestAgent, block_on};

/// Maximum memory of an agent: 5 MB.
const AGENT_KIB: u64 = 5_000_000 / 1024;

fn exchange(directories: usize, files: usize) {
    block_on(async {
        let (agent, ends) = (TestAgent::start(), ExchangeDirs::in_memory());
        let mut session = AgentSession::new(&agent);
        for directory in 0..directories {
            let directory = ends.host(&format!("directory-{directory}"));
            fs::create_dir(&directory).unwrap();
            for file in 0..files {
                fs::write(directory.join(format!("file-{file}.txt")), "x").unwrap();
            }
        }
        let count = (directories * (files + 1)) as u64;
        let summary = ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
        assert_eq!(summary.written, count);
        assert_eq!(ends.upload_work(&mut session, &FileScope::all()).await.unwrap().written, 0);
        assert_eq!(ends.get(&mut session, &FileScope::all()).await.unwrap().written, 0);
        remove_tree(&ends.host("")).unwrap();
        fs::create_dir(ends.host("")).unwrap();
        ends.record().forget().unwrap();
        assert_eq!(ends.get(&mut session, &FileScope::all()).await.unwrap().written, count);
        assert!(agent.peak_memory() < AGENT_KIB, "{} KiB", agent.peak_memory());
        let has = fs::read_dir(ends.host("directory-0")).unwrap().count();
        assert_eq!(has, files);
    });
}

#[test]
fn ten_thousand_files_in_many_directories_are_exchanged() {
    exchange(100, 100);
}

#[test]
fn hundred_thousand_files_in_one_directory_are_exchanged() {
    exchange(1, 100_000);
}

#[test]
fn large_files_need_little_memory() {
    block_on(async {
        let (agent, ends) = (TestAgent::start(), ExchangeDirs::in_memory());
        let mut session = AgentSession::new(&agent);
        let length = 200 << 20;
        fs::File::create(ends.host("large")).unwrap().set_len(length).unwrap();
        ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
        assert_eq!(fs::metadata(ends.container("large")).unwrap().len(), length);
        fs::rename(ends.container("large"), ends.container("other")).unwrap();
        ends.get(&mut session, &FileScope::all()).await.unwrap();
        assert_eq!(fs::metadata(ends.host("other")).unwrap().len(), length);
        assert!(!ends.host("large").exists());
        assert!(agent.peak_memory() < AGENT_KIB, "{} KiB", agent.peak_memory());
    });
}

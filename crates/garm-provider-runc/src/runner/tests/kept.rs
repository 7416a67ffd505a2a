//! Retention of cached runners.

use super::*;

#[test]
fn leftovers_of_a_killed_process_are_replaced() {
    let archive = runner();
    let server = server_of(&archive);
    let fixture = RunnerFixture::new();
    let tool = tool(&server, GITHUB, &archive);
    let key = fixture.prepare(&tool).unwrap().key;
    let dir = fixture.dir.path().join("runners");
    let leave = || {
        fs::create_dir_all(dir.join(format!(".new-{key}/tree/home"))).unwrap();
        symlink("/etc", dir.join(format!(".new-{key}/tree/etc"))).unwrap();
        fs::create_dir(dir.join(".gone-0123")).unwrap();
        // A power failure can leave empty files.
        fs::write(dir.join(&key).join("runner.json"), "").unwrap();
    };
    leave();
    fixture.prepare(&tool).unwrap();
    assert_eq!(fixture.list_leftovers(), [".gone-0123", "locks", &*key]);
    fs::remove_dir(dir.join(".gone-0123")).unwrap();
    leave();
    let pruned = fixture.runners().prune(&BTreeSet::new(), Duration::MAX).unwrap();
    assert_eq!((pruned.count, fixture.list_leftovers()), (1, vec!["locks".to_owned()]));
}

#[test]
fn unused_runners_are_removed() {
    let archive = runner();
    let server = server_of(&archive);
    let fixture = RunnerFixture::new();
    let runners = fixture.runners();
    let nobody = BTreeSet::new();
    assert_eq!(runners.prune(&nobody, Duration::ZERO).unwrap(), PrunedRunners::default());
    let layer = fixture.prepare(&tool(&server, GITHUB, &archive)).unwrap();
    let prune = |in_use: &BTreeSet<String>, age| runners.prune(in_use, age).unwrap().count;
    assert_eq!(prune(&nobody, HOUR), 0);
    assert_eq!(prune(&BTreeSet::from([layer.key.clone()]), Duration::ZERO), 0);
    assert!(layer.path.exists());
    let record = fixture.dir.path().join("runners").join(&layer.key).join("runner.json");
    let before = std::time::SystemTime::now() - 2 * HOUR;
    let age = || fs::File::options().write(true).open(&record).unwrap().set_modified(before);
    age().unwrap();
    // This call updates the time of use.
    fixture.prepare(&tool(&server, GITHUB, &archive)).unwrap();
    assert_eq!(prune(&nobody, HOUR), 0);
    age().unwrap();
    let pruned = runners.prune(&nobody, HOUR).unwrap();
    assert!(pruned.count == 1 && pruned.freed_bytes > 60_000, "{pruned:?}");
    assert_eq!(fixture.list_leftovers(), ["locks"]);
}

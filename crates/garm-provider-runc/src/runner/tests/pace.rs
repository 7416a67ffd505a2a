//! Slow servers.

use oci_hooks_image::MinRate;

use super::*;

#[test]
fn trickling_download_is_retried() {
    let archive = runner();
    let server = server_of(&archive);
    let tool = tool(&server, GITHUB, &archive);
    let mut fixture = RunnerFixture::new();
    // No connection reaches this speed.
    fixture.options.pace = MinRate { bytes_per_second: 1 << 50, over: Duration::from_nanos(1) };
    let message = fixture.fail(&tool);
    assert!(message.contains(" s, expected at least 1125899906842624 bytes/s"), "{message}");
    assert_eq!(server.seen_requests().len(), 3, "it may get better");
    fixture.options.pace.bytes_per_second = 0;
    fixture.prepare(&tool).unwrap();
}

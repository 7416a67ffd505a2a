//! Servers that take their time.

use super::*;
use crate::image::Pace;

#[test]
fn a_download_that_trickles_is_given_up_and_tried_again() {
    let archive = runner();
    let server = server_of(&archive);
    let tool = tool(&server, GITHUB, &archive);
    let mut bench = Bench::new();
    // Faster than any memory, whatever time the first piece takes.
    bench.options.pace = Pace { bytes_per_second: 1 << 50, over: Duration::from_nanos(1) };
    let message = bench.fail(&tool);
    assert!(message.contains(" s, expected at least 1125899906842624 bytes/s"), "{message}");
    assert_eq!(server.seen().len(), 3, "it may get better");
    bench.options.pace.bytes_per_second = 0;
    bench.prepare(&tool).unwrap();
}

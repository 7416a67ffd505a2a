//! The example plugin, which adds no hooks.

use std::os::unix::net::UnixStream;
use std::thread;

use oci_hooks_nri::wire::nri::{
    ContainerAdjustment, CreateContainerRequest, CreateContainerResponse, KeyValue, PodSandbox,
};
use prost::Message as _;

use crate::plugin::container;
use crate::runtime::SimulatedRuntime;

#[path = "../../examples/plugin.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod plugin;

#[test]
fn the_example_plugin_prints_containers_and_gives_them_a_variable() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let plugin = thread::spawn(move || {
        let mut printed = Vec::new();
        plugin::serve(theirs, plugin::ExamplePlugin(&mut printed)).unwrap();
        String::from_utf8(printed).unwrap()
    });

    let mut runtime = SimulatedRuntime::new(ours);
    assert_eq!(runtime.register(), "90-example");
    assert_eq!(runtime.configure("ignored"), Ok(8));
    runtime.call("Synchronize", Vec::new()).unwrap();
    let pod = PodSandbox { namespace: "a".to_owned(), name: "b".to_owned(), ..Default::default() };
    let request = CreateContainerRequest { pod: Some(pod), container: Some(container("/bin/sh")) };
    let response = runtime.call("CreateContainer", request.encode_to_vec()).unwrap();
    let adjust = CreateContainerResponse::decode(&response[..]).unwrap().adjust.unwrap();
    let seen = KeyValue { key: "SEEN_BY".to_owned(), value: "example".to_owned() };
    assert_eq!(adjust, ContainerAdjustment { env: vec![seen], ..Default::default() });
    let (_, error) = runtime.call("CreateContainer", Vec::new()).unwrap_err();
    assert_eq!(error, "the request has no container");
    runtime.call("Shutdown", Vec::new()).unwrap();

    drop(runtime);
    assert_eq!(plugin.join().unwrap(), "a/b/main: /bin/sh\n");
}

//! What a runtime sends an NRI plugin: frames, messages and calls, in whatever pieces they come.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::nri::wire::nri::{
    ConfigureRequest, CreateContainerRequest, Hook, Hooks, SynchronizeRequest,
};
use oci_hooks::nri::{Identity, Service, Session};

/// Gives each container a hook that says what was understood of it.
struct Plugin;

impl Service for Plugin {
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        if request.config.is_empty() { Ok(()) } else { Err(request.config.clone()) }
    }

    fn synchronize(&mut self, _: &SynchronizeRequest) {}

    fn create_container(&mut self, request: &CreateContainerRequest) -> Result<Hooks, String> {
        let container = request.container.clone().ok_or("no container")?;
        let hook = Hook { path: container.name, args: container.args, ..Hook::default() };
        Ok(Hooks { poststop: vec![hook], ..Hooks::default() })
    }

    fn shutdown(&mut self) {}
}

fuzz_target!(|sent: &[u8]| {
    // The first byte says how large the pieces are.
    let Some((size, sent)) = sent.split_first() else { return };
    let in_pieces = answers(sent, usize::from(*size).max(1));
    assert_eq!(in_pieces, answers(sent, sent.len().max(1)));
});

/// Returns the answers, unless the conversation ended with an error.
fn answers(sent: &[u8], size: usize) -> Option<Vec<u8>> {
    let identity = Identity::new("fuzz", "10").expect("a valid name");
    let (mut session, _) = Session::new(identity);
    let mut answers = Vec::new();
    for piece in sent.chunks(size) {
        answers.extend(session.receive(piece, &mut Plugin).ok()?);
    }
    Some(answers)
}

//! Input of an NRI plugin from a runtime: frames, messages and calls, in pieces of any size.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks_nri::wire::nri::{
    ConfigureRequest, ContainerAdjustment, CreateContainerRequest, Hook, Hooks, SynchronizeRequest,
};
use oci_hooks_nri::{NriSession, PluginIdentity, PluginService};

/// Gives each container a hook with the decoded name and arguments.
struct Plugin;

impl PluginService for Plugin {
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        if request.config.is_empty() { Ok(()) } else { Err(request.config.clone()) }
    }

    fn synchronize(&mut self, _: &SynchronizeRequest) {}

    fn create_container(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, String> {
        let container = request.container.clone().ok_or("no container")?;
        let hook = Hook { path: container.name, args: container.args, ..Hook::default() };
        Ok(Hooks { poststop: vec![hook], ..Hooks::default() }.into())
    }

    fn shutdown(&mut self) {}
}

fuzz_target!(|sent: &[u8]| {
    // The first byte is the size of the pieces.
    let Some((size, sent)) = sent.split_first() else { return };
    let in_pieces = answers(sent, usize::from(*size).max(1));
    assert_eq!(in_pieces, answers(sent, sent.len().max(1)));
});

/// Returns the answers, unless the session fails.
fn answers(sent: &[u8], size: usize) -> Option<Vec<u8>> {
    let identity = PluginIdentity::new("fuzz", "10").expect("a valid name");
    let (mut session, _) = NriSession::new(identity);
    let mut answers = Vec::new();
    for piece in sent.chunks(size) {
        answers.extend(session.receive(piece, &mut Plugin).ok()?);
    }
    Some(answers)
}

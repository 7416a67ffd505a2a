//! The repository used by the recorded commands.

use std::fs;
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::git;
use oci_hooks_testsupport::http::WebServer;

/// A server with the repository `r.git`.
pub(crate) struct GitServer {
    /// Host and port.
    pub(crate) address: String,
    _server: WebServer,
    _dir: tempfile::TempDir,
}

impl GitServer {
    /// Starts the server. The steps of the first commit say v1, those of main v2, those of dev dev.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("r.git");
        let run = |arguments: &[&str]| {
            let status = Command::new("git")
                .args(["-c", "user.name=a", "-c", "user.email=b"])
                .args(arguments)
                .current_dir(&root)
                .status();
            assert!(status.expect("git is installed").success(), "{arguments:?}");
        };
        fs::create_dir(&root).unwrap();
        run(&["init", "--quiet", "--initial-branch=main"]);
        commit(&root, "v1", &run);
        run(&["tag", "v1"]);
        run(&["tag", "--annotate", "--message=m", "v1a"]);
        commit(&root, "v2", &run);
        run(&["branch", "feature/x"]);
        run(&["checkout", "--quiet", "-b", "dev"]);
        commit(&root, "dev", &run);
        run(&["checkout", "--quiet", "main"]);
        let served = dir.path().to_owned();
        let server = WebServer::start(move |request| git::answer(&served, request));
        GitServer { address: server.address(), _server: server, _dir: dir }
    }
}

/// Creates a commit whose steps print its name.
fn commit(root: &Path, name: &str, git: &dyn Fn(&[&str])) {
    for (path, word) in
        [("step.yml", "top"), ("steps/step.yml", "root"), ("steps/sub/step.yml", "sub")]
    {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let step = format!(
            "spec: {{inputs: {{msg: {{type: string, default: d}}}}}}\n---\n\
             exec: {{command: [echo, {name}, {word}, '${{{{inputs.msg}}}}']}}\n"
        );
        fs::write(path, step).unwrap();
    }
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", name]);
}

//! The Kubernetes executor: an init container with the helper image, and the program in a volume for scripts.

use oci_hooks::step_runner::wire::proto::step_result::Status;

use crate::client::{block_on, run, script};
use crate::docker::{Job, Volumes, shell_command};
use crate::images::Image;
use crate::support::runtime::Runtime;

/// The name has the numbers of the project and of the job.
const DIR: &str = "/scripts-12-345";

#[test]
fn a_pod_serves_from_the_volume_of_scripts_as_the_user_that_it_has() {
    for runtime in Runtime::ALL {
        let volumes = Volumes::bootstrap(runtime, 1000, DIR);
        let helper = format!("{DIR}/gitlab-runner-helper");
        let [sh, option, text] = shell_command();
        let job = Job { runtime, image: Image::Busybox, user: 1000, dir: DIR };
        let mut container = volumes.build(&job, &[&helper, "steps", "serve", &sh, &option, &text]);
        let socket = container.ready();
        block_on(async {
            let client = container.client(&[&helper, "steps", "proxy", "--socket", &socket]);
            let (status, _, log) = run(&client, script("1", "id -u; sleep 1000 &")).await;
            assert_eq!(
                (status, &*log),
                (Status::Success, "Running step \"a\"\n1000\n"),
                "{runtime}"
            );
        });
        // The program that services with health checks are asked by, in the build container.
        let mut check = container.exec(&[&helper, "health-check", "--port", "80"]);
        let done = crate::support::program::run(&mut check);
        assert_eq!(done.stdout, "original: health-check --port 80\n", "{runtime}");
        container.stop();
        assert_eq!(container.ended().0.code(), Some(0), "{runtime}");
    }
}

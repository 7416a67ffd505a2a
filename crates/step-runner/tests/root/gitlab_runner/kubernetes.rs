//! The Kubernetes executor: an init container with the helper image, and the program in a volume for scripts.

use oci_hooks_testsupport::runtime::TestRuntime;
use step_runner::wire::proto::step_result::Status;

use crate::gitlab_runner::client::{block_on, run, script};
use crate::gitlab_runner::docker::{ContainerJob, JobVolumes, shell_command};
use crate::gitlab_runner::images::BuildImage;

/// Mount point of the scripts volume, named after the ids of the project and of the job.
const DIR: &str = "/scripts-12-345";

#[test]
fn pod_serves_from_the_scripts_volume_as_its_user() {
    for runtime in TestRuntime::ALL {
        let volumes = JobVolumes::bootstrap(runtime, 1000, DIR);
        let helper = format!("{DIR}/gitlab-runner-helper");
        let [sh, option, text] = shell_command();
        let job = ContainerJob { runtime, image: BuildImage::Busybox, user: 1000, dir: DIR };
        let mut container = volumes.build(&job, &[&helper, "steps", "serve", &sh, &option, &text]);
        let socket = container.ready();
        block_on(async {
            let client = container.client(&[&helper, "steps", "proxy", "--socket", &socket]);
            let (status, _, log) = run(&client, script("1", "id -u; sleep 1000 &")).await;
            assert_eq!(
                (status, &*log),
                (Status::Success, "Running step name=a\n1000\n"),
                "{runtime}"
            );
        });
        // Command of a service's health check, in the build container.
        let mut check = container.exec(&[&helper, "health-check", "--port", "80"]);
        let done = oci_hooks_testsupport::program::run(&mut check);
        assert_eq!(done.stdout, "original: health-check --port 80\n", "{runtime}");
        container.stop();
        assert_eq!(container.wait_for_stop().0.code(), Some(0), "{runtime}");
    }
}

//! Measures the download rate of an ordinary user's job, through the job's bridge and packet filter, and that of
//! pasta or slirp4netns alone, from the namespace of its tap device, in turn on one machine. The ratio must be at
//! least 0.8.
//!
//! `cargo bench -p container-hook --bench rootless_network`, as root; needs crun, docker-registry,
//! busybox-static, passt, slirp4netns and uidmap. `OCI_HOOKS_ROUNDS=21` sets the number of rounds.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{OUTSIDE, UserIds, UserWorld};

const ROUNDS: usize = 7;
/// Size of a download.
const MIB: usize = 300;
const BAR: f64 = 0.8;

fn main() {
    let rounds = std::env::var("OCI_HOOKS_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    println!("{MIB} MiB by HTTP; MiB a second, median (least - most) of {rounds} rounds in turn\n");
    for program in ["pasta", "slirp4netns"] {
        let world = UserWorld::new();
        let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
        let user = world.user(UserIds::Ranges);
        let settings = format!("[network]\nuplink = \"{program}\"\n");
        let installation = UserInstallation::new(&world, Some(&user), TestRuntime::Crun, &settings);
        let (port, speeds) = serve(world.listen_outside());
        let mut runner = installation.runner("bench");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let download = format!("busybox wget -q -O /dev/null http://{OUTSIDE}:{port}/");
        let pause_process = pause_process(&world);
        let (mut job, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            runner.run(&download).success();
            job.push(speeds.recv().unwrap());
            let mut enter = Command::new("nsenter");
            enter.args(["--target", &pause_process, "--net", "sh", "-c", &download]);
            world.host().run(&mut enter).success();
            alone.push(speeds.recv().unwrap());
        }
        runner.cleanup();
        let (job, alone) = (Figures::of(job), Figures::of(alone));
        let ratio = job.median / alone.median;
        println!("{program:12} alone {}", alone.text());
        println!("{program:12} a job {}", job.text());
        println!("{program:12} ratio {ratio:.2} (bar {BAR}){}\n", verdict(ratio));
    }
}

fn verdict(ratio: f64) -> &'static str {
    if ratio < BAR { " MISSED" } else { "" }
}

/// Sends zeros to each client, and reports the MiB per second of each connection.
fn serve(listener: TcpListener) -> (u16, Receiver<f64>) {
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = channel();
    thread::spawn(move || {
        let block = vec![0; 1 << 20];
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]).unwrap();
            let start = Instant::now();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", MIB << 20);
            stream.write_all(head.as_bytes()).unwrap();
            for _ in 0..MIB {
                stream.write_all(&block).unwrap();
            }
            // The client closes the connection after it has read all data.
            let _ = stream.read_to_end(&mut Vec::new());
            let seconds = start.elapsed().as_secs_f64();
            let mib = u32::try_from(MIB).unwrap();
            tell.send(f64::from(mib) / seconds).unwrap();
        }
    });
    (port, told)
}

/// Returns the pause process of the job, the parent of pasta or slirp4netns.
fn pause_process(world: &UserWorld) -> String {
    let processes = world.host().processes();
    let program = processes.iter().find(|process| process.line.contains("uplink0"));
    let pid = program.expect("a program leads out").pid;
    world.host().shell(&format!("ps -o ppid= -p {pid}")).trim().to_owned()
}

struct Figures {
    least: f64,
    median: f64,
    most: f64,
}

impl Figures {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Figures { least: all[0], median: all[all.len() / 2], most: all[all.len() - 1] }
    }

    fn text(&self) -> String {
        format!("{:6.0} ({:.0} - {:.0})", self.median, self.least, self.most)
    }
}

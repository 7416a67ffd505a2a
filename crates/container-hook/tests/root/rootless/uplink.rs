//! Network of rootless jobs: connections to the outside, published ports, and isolation from the host.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{OUTSIDE, OWN, UserWorld};
use serde_json::json;

use crate::rootless::setup::{UserKind, redis, shell_step, with};

/// Setting that permits connections to services of the host.
const HOST_ACCESS: &str = "host-access = true\n";

/// Calls a test with each uplink program, selected in the settings.
fn with_each_program(further: &str, test: impl Fn(&UserInstallation<'_>)) {
    let newer = NewerPasta::new();
    let programs = [
        (UserKind::Ranges, TestRuntime::Crun, newer.program.display().to_string()),
        (UserKind::Single, TestRuntime::Runc, "slirp4netns".to_owned()),
    ];
    for (who, runtime, program) in programs {
        let settings = format!("[network]\nuplink = \"{program}\"\n{further}");
        with(who, runtime, &settings, &test);
    }
}

/// pasta of Debian 13, as a program of this machine; Debian 12's loses connections.
struct NewerPasta {
    _directory: tempfile::TempDir,
    program: PathBuf,
}

impl NewerPasta {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debian-13");
        let pasta = root.join("usr/bin/pasta");
        assert!(
            pasta.exists() && root.join("usr/lib/x86_64-linux-gnu/libc.so.6").exists(),
            "this test needs passt of Debian 13 in {0}: run tests/support/debian-13.sh {0} containerd passt libc6",
            root.display()
        );
        let directory = program::temporary_directory_in(Path::new("/dev/shm"));
        // Readable by the users of worlds.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(directory.path(), open).unwrap();
        // The program needs the loader of a newer C library.
        let copy = |from: &str| {
            let to = directory.path().join(Path::new(from).file_name().unwrap());
            fs::copy(root.join(from), &to).unwrap();
            to.display().to_string()
        };
        let loader = copy("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        copy("usr/lib/x86_64-linux-gnu/libc.so.6");
        fs::create_dir(directory.path().join("bin")).unwrap();
        let real = directory.path().join("bin/pasta");
        fs::copy(pasta, &real).unwrap();
        let program = directory.path().join("pasta");
        let (libraries, real) = (directory.path().display(), real.display());
        let script = format!("#!/bin/sh\nexec {loader} --library-path {libraries} {real} \"$@\"\n");
        program::write_program(&program, &script);
        NewerPasta { _directory: directory, program }
    }
}

fn listen(world: &UserWorld, address: &str) -> TcpListener {
    let address: SocketAddr = address.parse().unwrap();
    world.host().enter(|| TcpListener::bind(address)).unwrap()
}

/// Answers each connection, on a thread of its own, with the reply to all data received.
fn answer(listener: TcpListener, reply: impl Fn(&[u8]) -> Vec<u8> + Clone + Send + 'static) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, reply) = (stream.unwrap(), reply.clone());
            thread::spawn(move || {
                let mut said = Vec::new();
                if stream.read_to_end(&mut said).is_ok() {
                    let _ = stream.write_all(&reply(&said));
                }
            });
        }
    });
}

#[test]
fn half_closed_connections_are_answered() {
    with_each_program("", |installation| {
        let server = installation.world.listen_outside();
        let port = server.local_addr().unwrap().port();
        answer(server, |said| [b"heard ", said].concat());
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let script = format!(
            "for i in $(seq 100); do echo $i | timeout 100 nc {OUTSIDE} {port} || echo lost; done"
        );
        let heard: String = (1..=100).map(|i| format!("heard {i}\n")).collect();
        assert_eq!(runner.run(&script).success().stdout(), heard);
        runner.cleanup();
    });
}

/// Returns reproducible random bytes.
fn bytes(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

#[test]
fn large_data_passes_unchanged_both_ways() {
    const LENGTH: usize = 100 << 20;
    // pasta of Debian 13 loses the end of the data.
    let settings = "[network]\nuplink = \"slirp4netns\"\n";
    with(UserKind::Single, TestRuntime::Runc, settings, |installation| {
        let server = installation.world.listen_outside();
        let port = server.local_addr().unwrap().port();
        // Sends all data back once it is complete.
        answer(server, <[u8]>::to_vec);
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let sent = bytes(LENGTH);
        installation.write(runner.workspace().join("name"), "");
        fs::write(runner.workspace().join("sent"), &sent).unwrap();
        let script = format!("nc {OUTSIDE} {port} <sent >got; cmp sent got && wc -c <got");
        assert_eq!(runner.run(&script).success().stdout(), format!("{LENGTH}\n"));
        runner.cleanup();
    });
}

#[test]
fn published_ports_listen_only_on_the_hosts_loopback() {
    with_each_program("", |installation| {
        let world = installation.world;
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner");
        let nginx = merge(
            container("nginx:alpine"),
            json!({"portMappings": ["8080:80", "192.0.2.10:8081:80", "127.0.0.7:8082:80"]}),
        );
        let response = runner.prepare(runner.job_container("alpine:3.20"), &[redis(), nginx]);
        let page = |address: &str| {
            world.host().shell(&format!("busybox wget -q -O- http://{address}/ 2>&1 || :"))
        };
        program::wait_until("the service listens", || page("127.0.0.1:8080").starts_with("hello"));
        for address in ["127.0.0.1:8080", "192.0.2.10:8081", "127.0.0.7:8082"] {
            assert_eq!(page(address), "hello from nginx\n", "{address}");
        }
        for address in ["192.0.2.10:8080", "127.0.0.1:8081", "127.0.0.1:8082"] {
            assert!(page(address).contains("refused"), "{address}");
        }
        let port = &response["context"]["services"][0]["ports"]["6379"];
        let port: u16 = port.as_str().unwrap().parse().unwrap();
        let mut client = world.host().enter(|| TcpStream::connect(("127.0.0.1", port))).unwrap();
        client.write_all(b"PING\r\nQUIT\r\n").unwrap();
        let mut pong = String::new();
        client.read_to_string(&mut pong).unwrap();
        assert_eq!(pong, "+PONG\r\n");
        drop(client);
        runner.cleanup();
        before.check_live(installation, "a job with ports");
        assert!(page("127.0.0.1:8080").contains("refused"));
    });
}

#[test]
fn unavailable_ports_are_rejected_by_number() {
    with_each_program("", |installation| {
        let world = installation.world;
        let _taken = listen(world, "127.0.0.1:8085");
        let mut runner = installation.runner("runner");
        let mut prepare = |port: &str| {
            // The port is published before the image is pulled.
            let service = merge(container("no/such:image"), json!({"portMappings": [port]}));
            let container = runner.job_container("alpine:3.20");
            let ended =
                runner.call("prepare_job", json!({"container": container, "services": [service]}));
            ended.failure()
        };
        let roots = prepare("80:80");
        assert!(roots.contains("port 80/tcp of the host is reserved for root"), "{roots}");
        assert!(roots.contains("net.ipv4.ip_unprivileged_port_start=80"), "{roots}");
        let mut runner = installation.runner("other");
        let nginx = merge(container("nginx:alpine"), json!({"portMappings": ["8085:80"]}));
        let ended = runner.call(
            "prepare_job",
            json!({"container": runner.job_container("alpine:3.20"), "services": [nginx]}),
        );
        let taken = ended.failure();
        assert!(taken.contains("port 8085/tcp of the host is in use"), "{taken}");
    });
}

#[test]
fn names_are_resolved_by_a_resolver_on_the_hosts_loopback() {
    with_each_program("", |installation| {
        let world = installation.world;
        world.host().shell("echo 'nameserver 127.0.0.53' >/etc/resolv.conf");
        let socket = world.host().enter(|| UdpSocket::bind("127.0.0.53:53")).unwrap();
        thread::spawn(move || resolve(&socket));
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        // On a busy machine an answer may come later than `nslookup` waits for it.
        let found = runner.run("until nslookup -type=a some.test; do :; done").success().stdout();
        assert!(found.contains("192.0.2.77"), "{found}");
        runner.cleanup();
    });
}

/// Answers queries for IPv4 addresses with 192.0.2.77, others with an empty response.
fn resolve(socket: &UdpSocket) {
    let mut question = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut question) {
        let question = &question[..length];
        let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
        let is_address = question[end - 4..end] == [0, 1, 0, 1];
        let mut answer = question[..end].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
        if is_address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 77]);
        }
        let _ = socket.send_to(&answer, from);
    }
}

/// Tests addresses of the host, and addresses that pasta and slirp4netns map to the host.
#[test]
fn jobs_cannot_reach_the_host() {
    for (further, reaches) in [("", false), (HOST_ACCESS, true)] {
        with_each_program(further, |installation| {
            let world = installation.world;
            let everywhere = listen(world, "[::]:7777");
            answer(everywhere, |_| b"heard by all\n".to_vec());
            let loopback = listen(world, "127.0.0.1:7778");
            answer(loopback, |_| b"heard by loopback\n".to_vec());
            let mut runner = installation.runner("runner");
            runner.prepare(runner.job_container("alpine:3.20"), &[]);
            let route = "ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'";
            let gateway = runner.run(route).success().stdout();
            // Without an answer, `nc` ends in different ways.
            let ask = |address: &str, port, limit| {
                format!("echo | timeout {limit} nc {address} {port} 2>/dev/null || :")
            };
            let addresses = [
                "10.213.255.2",
                "10.213.255.3",
                "10.213.255.100",
                "127.0.0.1",
                "192.0.2.1",
                "10.0.2.2",
                "10.0.2.3",
                gateway.trim_end(),
            ];
            let ask_both = |address| {
                [7777, 7778].map(|port| format!("({}) &\n", ask(address, port, 3))).concat()
            };
            let script = addresses.map(ask_both).concat() + "wait";
            let limit = if reaches { 100 } else { 3 };
            let of_host = ask(OWN, 7777, limit);
            for step in [script, ask(OWN, 7778, 3), of_host.clone()] {
                let is_reached = reaches && step == of_host;
                let in_job = runner.run(&step).success().stdout();
                let in_action = runner.container_step(shell_step(&step)).0.success().stdout();
                for answers in [in_job, in_action] {
                    assert_eq!(answers.contains("heard by "), is_reached, "{step}: {answers}");
                }
            }
            runner.cleanup();
        });
    }
}

/// Returns the ids of the uplink processes, in the host's PID namespace.
fn programs(world: &UserWorld) -> Vec<u32> {
    let processes = world.host().processes();
    let leads = |line: &str| line.contains("uplink0");
    let found = processes.into_iter().filter(|process| leads(&process.line));
    found.map(|process| process.pid).collect()
}

#[test]
fn lost_uplink_is_reported_and_restarted() {
    with_each_program("", |installation| {
        let world = installation.world;
        let before = LeftoverSnapshot::take(installation);
        let server = world.listen_outside();
        let port = server.local_addr().unwrap().port();
        answer(server, |_| b"heard\n".to_vec());
        let mut runner = installation.runner("runner");
        let nginx = merge(container("nginx:alpine"), json!({"portMappings": ["8080:80"]}));
        runner.prepare(runner.job_container("alpine:3.20"), &[nginx]);
        let ask = format!("echo | timeout 100 nc {OUTSIDE} {port}");
        assert_eq!(runner.run(&ask).success().stdout(), "heard\n");
        let found = programs(world);
        assert_eq!(found.len(), 1, "{found:?}");
        world.host().shell(&format!("kill -KILL {}", found[0]));
        program::wait_until("the program ends", || programs(world).is_empty());
        let (ended, _) = runner.container_step(shell_step(&ask));
        let ended = ended.success();
        assert!(ended.stdout().ends_with("heard\n"));
        assert!(ended.log().contains("which connects the job to the network, has exited"));
        assert_eq!(runner.run(&ask).success().stdout(), "heard\n");
        // Without a health check the job does not wait for the service.
        let page = "until busybox wget -q -O- http://127.0.0.1:8080/; do sleep 0.05; done";
        let page = world.host().shell(page);
        assert_eq!(page, "hello from nginx\n");
        runner.cleanup();
        before.check_live(installation, "a job that lost its way out");
    });
}

#[test]
fn jobs_work_on_a_host_without_a_default_route() {
    with_each_program(HOST_ACCESS, |installation| {
        let world = installation.world;
        world.host().shell("ip route del default");
        let server = listen(world, "192.0.2.10:0");
        let port = server.local_addr().unwrap().port();
        answer(server, |_| b"heard\n".to_vec());
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let ask = format!("echo | timeout 100 nc 192.0.2.10 {port}");
        assert_eq!(runner.run(&ask).success().stdout(), "heard\n");
        runner.cleanup();
    });
}

#[test]
fn missing_tun_device_fails_only_jobs_that_need_a_network() {
    let closed =
        "umount /dev/net/tun; umask 077; touch /run/closed; mount --bind /run/closed /dev/net/tun";
    with(UserKind::Ranges, TestRuntime::Crun, "", |installation| {
        installation.world.host().shell(closed);
        let mut runner = installation.runner("runner");
        let container = runner.job_container("alpine:3.20");
        let ended = runner.call("prepare_job", json!({"container": container, "services": []}));
        let refused = ended.failure();
        assert!(refused.contains("/dev/net/tun"), "{refused}");
    });
    with(UserKind::Ranges, TestRuntime::Crun, "[network]\nuplink = \"none\"\n", |installation| {
        installation.world.host().shell(closed);
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("alpine:3.20"), &[container("nginx:alpine")]);
        let page = runner.run("until wget -q -O- http://nginx/; do sleep 0.05; done").success();
        assert_eq!(page.stdout(), "hello from nginx\n");
        let alone = format!("echo | timeout 5 nc {OUTSIDE} 80");
        assert_ne!(runner.run(&alone).status.code(), Some(0));
        runner.cleanup();
        let nginx = merge(container("nginx:alpine"), json!({"portMappings": ["8080:80"]}));
        let ended = runner.call(
            "prepare_job",
            json!({"container": runner.job_container("alpine:3.20"), "services": [nginx]}),
        );
        let refused = ended.failure();
        assert!(refused.contains("port 8080/tcp cannot be published"), "{refused}");
    });
}

//! Reports of `container-hook doctor` on firewalls, and the effect of its hints.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use oci_hooks_testsupport::program;
use serde_json::Value;

use crate::network::host::{self, NetworkHost, ip, nft, set, shell};
use crate::network::{ask, endpoint, join_address, run_in_network, serve};

/// Result of a check.
struct DoctorCheck {
    status: String,
    found: String,
    hint: String,
}

/// Calls `doctor` in the network namespace of the calling thread, with these network settings.
#[track_caller]
fn doctor(name: &str, settings: &str) -> DoctorCheck {
    let directory = program::temporary_directory();
    let at = |name: &str| directory.path().join(name);
    let text = format!(
        "[store]\nroot = {:?}\nrun = {:?}\n[network]\n{settings}\n",
        at("store"),
        at("run")
    );
    std::fs::write(at("settings.toml"), text).unwrap();
    let mut command = Command::new(program::built_program("container-hook"));
    command.args(["doctor", "--format", "json"]);
    command.env("OCI_HOOKS_CONTAINER_HOOK_CONFIG", at("settings.toml"));
    let report: Value = serde_json::from_str(&program::run(&mut command).stdout).unwrap();
    // `doctor` leaves no files.
    assert!(!at("run").exists() && !at("run-doctor").exists());
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {report}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    DoctorCheck { status: text("status"), found: text("found"), hint: text("hint") }
}

/// Expects that jobs cannot reach the world until the hint is followed.
#[track_caller]
fn expect_mended(host: &NetworkHost, who: &str, mut shell: impl FnMut(&str)) {
    let said = doctor("firewall", "");
    assert_eq!(said.status, "fail", "{}", said.found);
    assert!(said.found.contains(who), "{} does not name {who}", said.found);
    shell(&said.hint);
    let said = doctor("firewall", "");
    assert_eq!((said.status.as_str(), said.hint.as_str()), ("ok", ""), "{}", said.found);
    expect_world(host);
}

#[track_caller]
fn expect_world(host: &NetworkHost) {
    let network = host.network("mended");
    let a = network.attach(&endpoint("a", &[])).unwrap();
    run_in_network(&a, || ask(&join_address(host::WORLD.parse().unwrap(), 80)).unwrap());
    network.remove().unwrap();
}

#[test]
fn doctor_reports_rules_that_block_jobs() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        assert_eq!(doctor("firewall", "").status, "ok");
        // A policy as Docker's does not block jobs.
        shell("iptables -P FORWARD DROP");
        assert_eq!(doctor("firewall", "").status, "ok");
        let run = |commands: &str| drop(shell(commands));
        shell("iptables -N OWN; iptables -I FORWARD -j OWN; iptables -A OWN -o outside -j REJECT");
        expect_mended(&host, "chain OWN of table ip filter blocks traffic of jobs", run);
        shell("iptables -F; iptables -P FORWARD ACCEPT");
        nft("table inet own { chain out { type filter hook forward priority 5; policy drop; }; }");
        expect_mended(&host, "chain out of table inet own", run);
        nft("delete table inet own");
        // nft does not show iptables-legacy.
        shell("iptables-legacy -P FORWARD DROP");
        expect_mended(&host, "iptables-legacy blocks traffic", run);
        shell("iptables-legacy -F; iptables-legacy -P FORWARD ACCEPT");
        set("net/ipv6/conf/all/forwarding", "1");
        assert_eq!(doctor("firewall, IPv6", "").status, "ok");
        shell("ip6tables -A FORWARD -j DROP");
        let said = doctor("firewall, IPv6", "");
        assert_eq!(said.status, "warn");
        shell(&said.hint);
        assert_eq!(doctor("firewall, IPv6", "").status, "ok");
        ip("route del default");
        assert_eq!(doctor("firewall", "").status, "warn");
        let rules = shell("nft list ruleset");
        assert!(!rules.contains("oci_hooks") && !rules.contains("oci-hooks"), "{rules}");
    });
}

#[test]
fn doctor_suggests_naming_the_uplink_bridge() {
    let host = NetworkHost::new();
    host.run(|| {
        let guest = host.guest("br1", "bridge");
        // The route is in another table than the default routes that the engine reads.
        for command in [
            "route add default via 203.0.113.2 table 7",
            "rule add preference 5 from 10.213.0.0/16 lookup 7",
        ] {
            ip(command);
        }
        let said = doctor("firewall", "");
        assert!(said.found.contains("chain forward of table inet oci_hooks"), "{}", said.found);
        assert!(said.hint.contains("`uplinks`"), "{}", said.hint);
        assert_eq!(doctor("firewall", "uplinks = [\"br1\"]").status, "ok");
        assert!(guest.exists());
    });
}

#[test]
fn disabled_forwarding_stays_disabled() {
    let host = NetworkHost::new();
    host.run(|| {
        set("net/ipv4/ip_forward", "0");
        assert_eq!(doctor("firewall", "").status, "ok");
        assert_eq!(shell("cat /proc/sys/net/ipv4/ip_forward"), "0\n");
        let network = host.network("forwards");
        assert_eq!(doctor("firewall", "").status, "ok");
        network.remove().unwrap();
    });
}

#[test]
fn doctor_suggests_a_rule_for_ufw() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        // As with `DEFAULT_FORWARD_POLICY="REJECT"`, which rejects packets before the end of the chain.
        shell(
            "for c in before user reject; do iptables -N ufw-$c-forward; done; \
             iptables -A FORWARD -j ufw-before-forward; iptables -A FORWARD -j ufw-reject-forward; \
             iptables -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
             iptables -A ufw-before-forward -j ufw-user-forward; \
             iptables -A ufw-reject-forward -j REJECT",
        );
        // ufw checks the whole machine: `--dry-run` prints the rule that it would add.
        expect_mended(&host, "chain ufw-reject-forward", |command| {
            let command = command.replacen("ufw ", "ufw --dry-run ", 1);
            let rules = shell(&format!("{command} | grep -m 1 '^-A ufw-user-forward'"));
            shell(&format!("iptables {rules}"));
        });
    });
}

/// firewalld, with its own bus and settings, in the network namespace of the calling thread.
struct Firewalld {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Firewalld {
    fn start() -> Self {
        for name in ["firewalld", "dbus-daemon"] {
            program::find(name);
        }
        let script = "mount -t tmpfs tmpfs /run; mkdir -p /run/dbus /run/lock /run/firewalld /run/etc; \
            cp -r /etc/firewalld/. /run/etc; mount --bind /run/etc /etc/firewalld; \
            dbus-daemon --system --nofork --nopidfile >/dev/null 2>&1 </dev/null & \
            timeout 600 sh -c 'until [ -S /run/dbus/system_bus_socket ]; do sleep 0.01; done'; \
            firewalld --nofork --nopid >/dev/null 2>&1 </dev/null & \
            timeout 600 sh -c 'until firewall-cmd --state >/dev/null 2>&1; do sleep 0.05; done' || exit; \
            echo ready; while read -r line; do eval \"$line\" >/dev/null </dev/null; echo $?; done";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"])
            .args(["--kill-child", "bash", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut firewalld = Firewalld { process, commands, answers };
        firewalld.expect("ready");
        firewalld
    }

    #[track_caller]
    fn expect(&mut self, answer: &str) {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), answer);
    }
}

impl Drop for Firewalld {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn doctor_suggests_a_zone_for_firewalld() {
    let host = NetworkHost::new();
    host.run_outside(|| serve("[::]:80"));
    host.run(|| {
        let mut firewalld = Firewalld::start();
        let before = shell("nft --stateless list table inet firewalld");
        expect_mended(&host, "of table inet firewalld", |commands| {
            for command in commands.lines() {
                writeln!(firewalld.commands, "{command}").unwrap();
                firewalld.expect("0");
            }
        });
        assert_ne!(shell("nft --stateless list table inet firewalld"), before);
    });
}

//! What `container-hook doctor` says of firewalls, and whether what it says to do helps.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::host::{self, Host, ip, nft, set, shell};
use crate::support::program;
use crate::{ask, at, endpoint, serve, within};

/// What is said of a check.
struct Said {
    status: String,
    found: String,
    hint: String,
}

/// Calls `doctor` in the network namespace of the calling thread, with these settings for networks.
#[track_caller]
fn doctor(name: &str, settings: &str) -> Said {
    let directory = program::temporary_directory();
    let at = |name: &str| directory.path().join(name);
    let text = format!(
        "[store]\nroot = {:?}\nrun = {:?}\n[network]\n{settings}\n",
        at("store"),
        at("run")
    );
    std::fs::write(at("settings.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_container-hook"));
    command.args(["doctor", "--format", "json"]);
    command.env("OCI_HOOKS_CONTAINER_HOOK_CONFIG", at("settings.toml"));
    let report: Value = serde_json::from_str(&program::run(&mut command).stdout).unwrap();
    // It leaves nothing.
    assert!(!at("run").exists() && !at("run-doctor").exists());
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {report}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    Said { status: text("status"), found: text("found"), hint: text("hint") }
}

/// Expects that jobs are kept in, and are let out by doing as one is told.
#[track_caller]
fn expect_mended(host: &Host, who: &str, mut shell: impl FnMut(&str)) {
    let said = doctor("firewall", "");
    assert_eq!(said.status, "fail", "{}", said.found);
    assert!(said.found.contains(who), "{} does not name {who}", said.found);
    shell(&said.hint);
    let said = doctor("firewall", "");
    assert_eq!((said.status.as_str(), said.hint.as_str()), ("ok", ""), "{}", said.found);
    expect_world(host);
}

#[track_caller]
fn expect_world(host: &Host) {
    let network = host.network("mended");
    let a = network.attach(&endpoint("a", &[])).unwrap();
    within(&a, || ask(&at(host::WORLD.parse().unwrap(), 80)).unwrap());
    network.remove().unwrap();
}

#[test]
fn what_rules_of_the_admin_keep_in_is_told() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        assert_eq!(doctor("firewall", "").status, "ok");
        // By its policy, as Docker has it: jobs get out all the same.
        shell("iptables -P FORWARD DROP");
        assert_eq!(doctor("firewall", "").status, "ok");
        let run = |commands: &str| drop(shell(commands));
        shell("iptables -N OWN; iptables -I FORWARD -j OWN; iptables -A OWN -o outside -j REJECT");
        expect_mended(&host, "chain OWN of table ip filter blocks traffic of jobs", run);
        shell("iptables -F; iptables -P FORWARD ACCEPT");
        nft("table inet own { chain out { type filter hook forward priority 5; policy drop; }; }");
        expect_mended(&host, "chain out of table inet own", run);
        nft("delete table inet own");
        // Which nft does not see at all.
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
fn that_the_way_out_is_a_bridge_to_be_named_is_told() {
    let host = Host::new();
    host.run(|| {
        let guest = host.guest("br1", "bridge");
        // By another table than the one that is looked at for default routes.
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
fn what_forwarded_nothing_before_forwards_nothing_afterwards() {
    let host = Host::new();
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
fn ufw_is_told_to_let_jobs_out_where_it_rejects() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
    host.run(|| {
        // Where rules for the world are rejected before the end, as `DEFAULT_FORWARD_POLICY="REJECT"` has it.
        shell(
            "for c in before user reject; do iptables -N ufw-$c-forward; done; \
             iptables -A FORWARD -j ufw-before-forward; iptables -A FORWARD -j ufw-reject-forward; \
             iptables -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; \
             iptables -A ufw-before-forward -j ufw-user-forward; \
             iptables -A ufw-reject-forward -j REJECT",
        );
        // Its own checks look at the whole machine: `--dry-run` shows the rule that it would make.
        expect_mended(&host, "chain ufw-reject-forward", |command| {
            let command = command.replacen("ufw ", "ufw --dry-run ", 1);
            let rules = shell(&format!("{command} | grep -m 1 '^-A ufw-user-forward'"));
            shell(&format!("iptables {rules}"));
        });
    });
}

/// firewalld, with a bus and settings of its own, in the network namespace of the calling thread.
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
            until [ -S /run/dbus/system_bus_socket ]; do :; done; \
            firewalld --nofork --nopid >/dev/null 2>&1 </dev/null & \
            until firewall-cmd --state >/dev/null 2>&1; do :; done; \
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
fn firewalld_is_told_to_let_jobs_out() {
    let host = Host::new();
    host.outside(|| serve("[::]:80"));
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

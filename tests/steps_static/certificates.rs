//! Whose certificates are trusted: those of the host, or where it has none those beside the program, or
//! else those that are compiled in.

use std::fs;

use crate::setup::{Content, Root};
use crate::support::certificates::Certificates;

const URL: &str = "https://ghcr.io/r.git";

#[test]
fn certificates_are_those_of_the_host_or_beside_the_program() {
    let certificates = Certificates::shared();
    let authorities = fs::read_to_string(certificates.authorities()).unwrap();
    let root = Root::new(Content::Nothing);
    let server = root.serve("127.0.0.9:443", Some(certificates.tls()));
    root.write("etc/hosts", "127.0.0.9 ghcr.io\n");
    root.write_step(URL);
    let run = |variables: &[(&str, &str)]| {
        // Each time anew.
        root.host.shell(&format!("rm -rf {}/root/tmp/*", root.host.path().display()));
        root.run(&[&[("HOME", "/tmp")], variables].concat(), "/step.yml")
    };
    let remove = |path: &str| fs::remove_file(root.host.path().join("root").join(path)).unwrap();

    // Those compiled in are not this one's.
    let error = run(&[]).failure();
    assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{error}");
    assert!(server.requests().is_empty());

    root.write("ca-certs.pem", &authorities);
    run(&[]).success();
    // The host's own count alone, if it has some.
    root.write("etc/ssl/certs/ca-certificates.crt", &other_authority());
    run(&[]).failure();
    root.write("etc/ssl/certs/ca-certificates.crt", &authorities);
    remove("ca-certs.pem");
    run(&[]).success();
    remove("etc/ssl/certs/ca-certificates.crt");

    root.write("own.pem", &authorities);
    run(&[("SSL_CERT_FILE", "/own.pem")]).success();
    // What is named and not there is not replaced by anything.
    root.write("ca-certs.pem", &authorities);
    let error = run(&[("SSL_CERT_FILE", "/none.pem")]).failure();
    assert!(error.contains("/none.pem"), "{error}");
}

/// Returns the certificate of an authority that nobody knows.
fn other_authority() -> String {
    let dir = crate::support::program::temporary_directory();
    let mut openssl = std::process::Command::new(crate::support::program::find("openssl"));
    openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split(' '));
    openssl.args("-subj /CN=other -keyout key.pem -out authority.pem".split(' '));
    crate::support::program::run(openssl.current_dir(dir.path())).success();
    fs::read_to_string(dir.path().join("authority.pem")).unwrap()
}

//! Parses the `options:` of a container and checks them against the policy.

#![no_main]

use container_hook_job::options::CreateOptions;
use container_hook_job::policy::Policy;
use container_hook_job::volumes::VolumeSource;
use container_hook_job::words;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // Quoted words are split into the same words.
    if let Ok(split) = words::split(text) {
        let quoted: Vec<_> =
            split.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        assert_eq!(words::rejoin(&quoted).as_ref(), Ok(&split));
    }
    let mut options = match CreateOptions::parse(text) {
        Ok(options) => options,
        Err(error) => return drop(error.to_string()),
    };
    let names = [&options.name, &options.hostname, &options.domainname];
    let written = names.into_iter().flatten().chain(&options.network.aliases);
    let written = written.chain(options.network.hosts.iter().map(|host| &host.name));
    for word in written.chain(&options.network.dns_options).chain(&options.network.dns_search) {
        assert!(!word.is_empty() && word.chars().all(|c| c.is_ascii_graphic()), "{word:?}");
    }
    match options.check(&Policy::default()) {
        Err(refusals) => drop(refusals.to_string()),
        Ok(()) => {
            assert!(!options.security.privileged && options.host_namespaces.is_empty());
            assert!(options.devices.is_empty() && options.annotations.is_empty());
            let bind = |source: &VolumeSource| matches!(source, VolumeSource::Bind { .. });
            assert!(!options.volumes.iter().any(|volume| bind(&volume.source)));
        }
    }
});

//! Parts of requests, as the runner sends them.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// Returns a container of an image without options, which is also a service as the runner sends it.
pub fn container(image: &str) -> Value {
    json!({
        "image": image, "dockerfile": null, "entryPointArgs": [], "entryPoint": null,
        "workingDirectory": null, "createOptions": null, "registry": null,
        "environmentVariables": {}, "portMappings": [], "systemMountVolumes": [],
        "userMountVolumes": [],
    })
}

/// Returns a service with a health check that succeeds once the service listens.
pub fn redis() -> Value {
    let health = "--health-cmd \"redis-cli ping\" --health-interval 10s --health-timeout 5s \
                  --health-retries 5";
    merge(container("redis:7"), json!({"createOptions": health, "portMappings": ["6379"]}))
}

/// Returns a container action that runs a shell script, split into words as the runner does.
pub fn shell_step(script: &str) -> Value {
    assert!(!script.contains('\''), "it stands in such quotes");
    let words = format!("-c '{script}'");
    let words: Vec<_> = words.split(' ').filter(|word| !word.is_empty()).collect();
    json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words})
}

/// Returns a step that builds its image.
pub fn built_step(dockerfile: &Path) -> Value {
    json!({"image": null, "dockerfile": dockerfile, "entryPointArgs": []})
}

/// Returns an object with some fields changed.
pub fn merge(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    for (name, value) in fields {
        object[name] = value;
    }
    object
}

/// Returns a mount of the runner's own (`systemMountVolumes`).
pub fn mount(source: impl AsRef<Path>, target: &str, read_only: bool) -> Value {
    json!({
        "userProvidedValue": null, "sourceVolumePath": source.as_ref(),
        "targetVolumePath": target, "readOnly": read_only,
    })
}

/// Returns a volume as the runner sends `volumes:`.
pub fn volume(source: &str, target: &str, read_only: bool) -> Value {
    let ro = if read_only { ":ro" } else { "" };
    merge(
        mount(source, target, read_only),
        json!({"userProvidedValue": format!("{source}:{target}{ro}")}),
    )
}

/// Returns a new identifier in the form that the runner uses.
pub fn guid() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id())
}

//! containerd: hooks by a runtime that adds them, or by a plugin of NRI.

use std::path::{Path, PathBuf};

use oci_hooks::program::check::Check;

use super::config_file::{ConfigFile, Setting};
use super::host::Host;
use super::wrapper;

const NAME: &str = "containerd";
const FILE: &str = "/etc/containerd/config.toml";

/// The plugin that serves the CRI, by its names in versions 3, 2 and 1 of the file.
const CRI: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];
const NRI: &str = "io.containerd.nri.v1.nri";

/// The first version with NRI, and the first that has it enabled unless the file says otherwise.
const HAS_NRI: (u64, u64) = (1, 7);
const ENABLES_NRI: (u64, u64) = (2, 0);

/// Plugins that apply hook files; their names follow an index, as in `10-oci-hooks-nri`.
const PLUGINS: [&str; 2] = ["oci-hooks-nri", "hook-injector"];
const PLUGIN_DIR: &str = "/opt/nri/plugins";
/// The service that connects to NRI's socket, where it is enabled.
const SERVICE: &str = "/etc/systemd/system/multi-user.target.wants/oci-hooks-nri.service";

/// Looks at containers of Kubernetes, if containerd is installed.
pub fn checks(host: &Host) -> Option<Check> {
    let containerd = host.program("containerd")?;
    let files = match files(host) {
        Ok(files) => files,
        Err(found) => {
            return Some(host.unreadable(NAME, "containerd", found));
        }
    };
    let config = Config { files, version: host.version(&containerd) };
    if let Some(disabled) = config.strings(&["disabled_plugins"])
        && disabled.value.iter().any(|name| CRI.contains(&name.as_str()))
    {
        let found = format!(
            "serves Docker, ctr and nerdctl, and no Kubernetes, by {}: they name a runtime themselves",
            disabled.at
        );
        let hint = format!(
            "ctr run --runc-binary {0}, nerdctl --runtime {0}",
            wrapper::path(host).display()
        );
        return Some(Check::warn(NAME, found, hint));
    }
    Some(
        by_runtime(&config, host)
            .or_else(|| by_nri(&config, host))
            .unwrap_or_else(|| Check::fail(NAME, why_not(&config), advice(&config, host))),
    )
}

/// Returns containerd's file and those that it imports, which decide before it.
fn files(host: &Host) -> Result<Vec<ConfigFile>, String> {
    let Some(main) = ConfigFile::read(Path::new(FILE), host)? else { return Ok(Vec::new()) };
    let imports = main.strings(&["imports"]).map(|imports| imports.value).unwrap_or_default();
    let mut files = vec![main];
    for pattern in imports {
        for path in matching(&pattern, host) {
            files.extend(ConfigFile::read(&path, host)?);
        }
    }
    Ok(files)
}

/// Returns the files of a pattern that has a `*` in its last part at most, as imports have.
fn matching(pattern: &str, host: &Host) -> Vec<PathBuf> {
    let path = Path::new("/etc/containerd").join(pattern);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (Some((start, end)), Some(dir)) = (name.split_once('*'), path.parent()) else {
        return vec![path];
    };
    let entries = host.root.list(dir).ok().flatten().unwrap_or_default();
    let entries = entries.into_iter().filter(|entry| {
        let name = entry.name.to_string_lossy();
        !entry.is_dir
            && name.len() >= start.len() + end.len()
            && name.starts_with(start)
            && name.ends_with(end)
    });
    entries.map(|entry| dir.join(entry.name)).collect()
}

struct Config {
    /// Those that decide last.
    files: Vec<ConfigFile>,
    version: Option<(u64, u64)>,
}

impl Config {
    fn find<T>(&self, get: impl Fn(&ConfigFile) -> Option<T>) -> Option<T> {
        self.files.iter().rev().find_map(get)
    }

    fn strings(&self, keys: &[&str]) -> Option<Setting<Vec<String>>> {
        self.find(|file| file.strings(keys))
    }

    /// Returns a setting of the CRI plugin below `containerd`.
    fn cri(&self, keys: &[&str]) -> Option<Setting<String>> {
        CRI.iter().find_map(|plugin| {
            let keys = [&["plugins", *plugin, "containerd"], keys].concat();
            self.find(|file| file.string(&keys))
        })
    }

    fn default_runtime(&self) -> String {
        self.cri(&["default_runtime_name"]).map_or_else(|| "runc".to_owned(), |name| name.value)
    }

    /// Returns the program of the default runtime.
    fn binary(&self) -> Option<Setting<String>> {
        let name = self.default_runtime();
        self.cri(&["runtimes", &name, "options", "BinaryName"])
    }

    /// Returns whether NRI is enabled, and what says so.
    fn nri(&self) -> (bool, String) {
        let is_old = self.version.is_some_and(|version| version < HAS_NRI);
        if let (false, Some(disable)) =
            (is_old, self.find(|file| file.boolean(&["plugins", NRI, "disable"])))
        {
            return (!disable.value, disable.at.to_string());
        }
        let is_file_of_2 = self.find(|file| file.number(&["version"])) >= Some(3);
        match self.version {
            Some(version) if version < HAS_NRI => (false, "its version, before 1.7".to_owned()),
            Some(version) => (version >= ENABLES_NRI, "the built-in default".to_owned()),
            None => (is_file_of_2, "the built-in default".to_owned()),
        }
    }
}

/// Looks at the runtime that containers get unless they ask for another.
fn by_runtime(config: &Config, host: &Host) -> Option<Check> {
    let binary = config.binary().filter(|binary| wrapper::is_wrapper(&binary.value, host))?;
    let reads = wrapper::reads(host);
    Some(Check::ok(NAME, format!("calls oci-hooks-runtime, by {}, which {reads}", binary.at)))
}

/// Looks for a plugin of NRI that applies hook files.
fn by_nri(config: &Config, host: &Host) -> Option<Check> {
    let (is_enabled, by) = config.nri();
    let plugin = plugin(config, host)?;
    let plugin = plugin.display();
    if is_enabled {
        return Some(Check::ok(NAME, format!("NRI is enabled, by {by}, with {plugin}")));
    }
    let found = format!("NRI is disabled, by {by}, and {plugin} does nothing");
    Some(Check::fail(NAME, found, advice(config, host)))
}

/// Finds the plugin that containerd starts, or the service that connects to it.
fn plugin(config: &Config, host: &Host) -> Option<PathBuf> {
    let dir = config.find(|file| file.string(&["plugins", NRI, "plugin_path"]));
    let dir = dir.map_or_else(|| PathBuf::from(PLUGIN_DIR), |dir| PathBuf::from(dir.value));
    let entries = host.root.list(&dir).ok().flatten().unwrap_or_default();
    let found = entries.into_iter().find(|entry| {
        let name = entry.name.to_string_lossy();
        let plugin = name.split_once('-').filter(|(index, _)| index.len() == 2);
        plugin.is_some_and(|(_, plugin)| PLUGINS.contains(&plugin))
    });
    let service =
        || matches!(host.read(Path::new(SERVICE)), Ok(Some(_))).then(|| PathBuf::from(SERVICE));
    found.map(|entry| dir.join(entry.name)).or_else(service)
}

fn why_not(config: &Config) -> String {
    let name = config.default_runtime();
    let (is_enabled, by) = config.nri();
    let nri = match is_enabled {
        true => format!("NRI is enabled, by {by}, and has no plugin for them"),
        false => format!("NRI is disabled, by {by}"),
    };
    match config.binary() {
        Some(binary) => {
            format!(
                "the runtime {name} is {:?}, by {}, which adds no hooks; {nri}",
                binary.value, binary.at
            )
        }
        None => format!("the runtime {name} has no BinaryName, and runc adds no hooks; {nri}"),
    }
}

/// Returns the lines to write.
fn advice(config: &Config, host: &Host) -> String {
    let file = host.root.join(Path::new(FILE));
    let is_3 = config.find(|file| file.number(&["version"])) >= Some(3);
    let cri = if is_3 { CRI[0] } else { CRI[1] };
    let name = config.default_runtime();
    let table = format!("[plugins.{cri:?}.containerd.runtimes.{name}");
    let runtime = format!(
        "in {}, write\n{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n{table}.options]\n  BinaryName = {:?}",
        file.display(),
        wrapper::path(host)
    );
    if config.version.is_some_and(|version| version < HAS_NRI) {
        return runtime;
    }
    let enable = match config.nri().0 {
        true => String::new(),
        false => format!("[plugins.{NRI:?}]\n  disable = false\nand "),
    };
    format!("{runtime}\nor {enable}install {PLUGIN_DIR}/10-{}", PLUGINS[0])
}

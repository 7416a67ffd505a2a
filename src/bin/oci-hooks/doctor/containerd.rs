//! containerd: hooks through a runtime that adds them, or through an NRI plugin.
//!
//! containerd itself prints the configuration that it uses. Only if it cannot be run, its file decides.

use std::path::{Path, PathBuf};

use oci_hooks_cli::check::HostCheck;

use super::config_file::{ConfigFile, FileSetting};
use super::host::DoctorHost;
use super::wrapper;

const NAME: &str = "containerd";
const FILE: &str = "/etc/containerd/config.toml";

/// Arguments to print the effective configuration: the built-in defaults, the file and its imports.
const DUMP: [&str; 2] = ["config", "dump"];

/// Names of the CRI plugin in versions 1, 2 and 3 of the configuration format. containerd ignores the names of other
/// versions.
const CRI: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
const NRI: &str = "io.containerd.nri.v1.nri";

/// The first containerd version with NRI.
const HAS_NRI: (u64, u64) = (1, 7);
/// The first containerd version that enables NRI by default and reads version 3 of the configuration format.
const ENABLES_NRI: (u64, u64) = (2, 0);

/// The containerd version whose first releases apply a file of version 2, but print the defaults in `config dump`:
/// <https://github.com/containerd/containerd/issues/11600>.
const PRINTS_NO_VERSION_2: (u64, u64) = (2, 0);

/// NRI plugins that apply hook files. Their file names have an index in front, as in `10-oci-hooks-nri`.
const PLUGINS: [&str; 2] = ["oci-hooks-nri", "hook-injector"];
const PLUGIN_DIR: &str = "/opt/nri/plugins";
/// Link that exists if the service that connects to NRI's socket is enabled.
const SERVICE: &str = "/etc/systemd/system/multi-user.target.wants/oci-hooks-nri.service";

/// Checks containers of Kubernetes, if containerd is installed.
pub fn checks(host: &DoctorHost) -> Option<HostCheck> {
    let containerd = host.program("containerd")?;
    let config = match ContainerdConfig::of(&containerd, host) {
        Ok(config) => config,
        Err(found) => {
            return Some(host.unreadable(NAME, "containerd", found));
        }
    };
    Some(check(&config, host))
}

fn check(config: &ContainerdConfig, host: &DoctorHost) -> HostCheck {
    if let Some(disabled) = config.strings(&["disabled_plugins"])
        && disabled.value.iter().any(|name| CRI.contains(&name.as_str()))
    {
        let found = format!(
            "does not serve Kubernetes, because the CRI plugin is disabled ({}); Docker, ctr and nerdctl choose the \
             runtime themselves",
            disabled.at
        );
        let hint = format!(
            "ctr run --runc-binary {0}, nerdctl --runtime {0}",
            wrapper::path(host).display()
        );
        let hint = wrapper::with_install_hint(&hint, host);
        return HostCheck::warn(NAME, config.add_source(found), hint);
    }
    check_runtime(config, host).or_else(|| check_nri(config, host)).unwrap_or_else(|| {
        HostCheck::fail(NAME, config.add_source(describe_obstacle(config)), advice(config, host))
    })
}

/// Returns containerd's configuration file and its imports, which take precedence.
fn files(host: &DoctorHost) -> Result<Vec<ConfigFile>, String> {
    let Some(main) = ConfigFile::read(Path::new(FILE), host)? else { return Ok(Vec::new()) };
    let imports = main.strings(&["imports"]).map(|imports| imports.value).unwrap_or_default();
    let mut files = vec![main];
    for pattern in imports {
        for path in find_matching(&pattern, host) {
            files.extend(ConfigFile::read(&path, host)?);
        }
    }
    Ok(files)
}

/// Returns the files that match a pattern of `imports`, which has at most one `*`, in its last component.
fn find_matching(pattern: &str, host: &DoctorHost) -> Vec<PathBuf> {
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

/// The configuration of containerd: the output of `containerd config dump`, and its files.
pub struct ContainerdConfig {
    /// The effective configuration, if containerd prints it.
    dump: Option<ConfigFile>,
    /// Configuration files, in order of increasing precedence.
    files: Vec<ConfigFile>,
    version: Option<(u64, u64)>,
}

impl ContainerdConfig {
    pub fn of(containerd: &Path, host: &DoctorHost) -> Result<Self, String> {
        let command = format!("containerd {}", DUMP.join(" "));
        let dump = match host.output(containerd, &DUMP) {
            Some(Ok(text)) => Some(ConfigFile::parse(command.into(), text)?),
            Some(Err(error)) => return Err(format!("{command}: {error}")),
            None => None,
        };
        let files = match &dump {
            // The dump lists all files that containerd read, in any order.
            Some(dump) => {
                let listed = dump.strings(&["imports"]);
                let mut paths = listed.map(|listed| listed.value).unwrap_or_default();
                paths.sort_by_key(|path| (path != FILE, path.clone()));
                let read = |path: String| ConfigFile::read(Path::new(&path), host).ok().flatten();
                paths.into_iter().filter_map(read).collect()
            }
            None => files(host)?,
        };
        let mut config = ContainerdConfig { dump, files, version: host.version(containerd).ok() };
        if config.version == Some(PRINTS_NO_VERSION_2) && config.declared_version() == Some(2) {
            config.dump = None;
        }
        Ok(config)
    }

    /// Returns the configuration format's `version`, as the files declare it; `None` if they do
    /// not.
    fn declared_version(&self) -> Option<u64> {
        self.find_in_files(|file| file.number(&["version"]))
    }

    fn find<T>(&self, get: impl Fn(&ConfigFile) -> Option<T>) -> Option<T> {
        match &self.dump {
            Some(dump) => get(dump),
            None => self.find_in_files(get),
        }
    }

    fn find_in_files<T>(&self, get: impl Fn(&ConfigFile) -> Option<T>) -> Option<T> {
        self.files.iter().rev().find_map(get)
    }

    /// Appends a note about the source if the setting is from the files, not from the dump.
    fn add_source(&self, found: String) -> String {
        match self.dump {
            Some(_) => found,
            None => format!("{found}; from its file, not from `containerd config dump`"),
        }
    }

    /// Returns the directory with the bundles of running containers.
    pub fn state(&self) -> PathBuf {
        let state = self.find(|file| file.string(&["state"]));
        state.map_or_else(|| PathBuf::from("/run/containerd"), |state| state.value.into())
    }

    /// Returns the socket on which containerd listens.
    pub fn socket(&self) -> String {
        let socket = self.find(|file| file.string(&["grpc", "address"]));
        socket.map_or_else(|| "/run/containerd/containerd.sock".to_owned(), |socket| socket.value)
    }

    /// Describes the NRI plugin that applies hook files and the setting that enables NRI; `None` if NRI is disabled
    /// or has no such plugin.
    pub fn nri_plugin(&self, host: &DoctorHost) -> Option<String> {
        let (is_enabled, by) = self.nri();
        let plugin = plugin(self, host).filter(|_| is_enabled)?;
        Some(self.add_source(format!("NRI is enabled ({by}), and {} adds hooks", plugin.display())))
    }

    /// Returns the name of the CRI plugin in the version of the configuration. A configuration without a version has
    /// version 1.
    fn cri_plugin(&self) -> &'static str {
        cri_plugin(self.find(|file| file.number(&["version"])).unwrap_or(1))
    }

    fn strings(&self, keys: &[&str]) -> Option<FileSetting<Vec<String>>> {
        self.find(|file| file.strings(keys))
    }

    /// Returns a string from the table `containerd` of the CRI plugin; `None` if it is empty or missing.
    fn cri(&self, keys: &[&str]) -> Option<FileSetting<String>> {
        let keys = [&["plugins", self.cri_plugin(), "containerd"], keys].concat();
        self.find(|file| file.string(&keys)).filter(|setting| !setting.value.is_empty())
    }

    fn default_runtime(&self) -> String {
        self.cri(&["default_runtime_name"]).map_or_else(|| "runc".to_owned(), |name| name.value)
    }

    /// Returns the `BinaryName` of the default runtime; `None` if it is not set.
    fn binary(&self) -> Option<FileSetting<String>> {
        let name = self.default_runtime();
        self.cri(&["runtimes", &name, "options", "BinaryName"])
    }

    /// Returns a `BinaryName` of the default runtime that a file sets under any name of the CRI plugin. It has no
    /// effect if `binary` returns `None`.
    fn ignored_binary(&self) -> Option<FileSetting<String>> {
        let name = self.default_runtime();
        CRI.iter().find_map(|plugin| {
            let keys =
                ["plugins", plugin, "containerd", "runtimes", &name, "options", "BinaryName"];
            self.find_in_files(|file| file.string(&keys))
                .filter(|setting| !setting.value.is_empty())
        })
    }

    /// Returns whether NRI is enabled, and the source of that setting.
    fn nri(&self) -> (bool, String) {
        let is_old = self.version.is_some_and(|version| version < HAS_NRI);
        if let (false, Some(disable)) =
            (is_old, self.find(|file| file.boolean(&["plugins", NRI, "disable"])))
        {
            return (!disable.value, disable.at.to_string());
        }
        let is_config_of_version_2 = self.find(|file| file.number(&["version"])) >= Some(3);
        match self.version {
            Some(version) if version < HAS_NRI => {
                (false, "containerd before 1.7 has none".to_owned())
            }
            Some(version) => (version >= ENABLES_NRI, "the built-in default".to_owned()),
            None => (is_config_of_version_2, "the built-in default".to_owned()),
        }
    }
}

/// Checks the default runtime; `None` if it is not `oci-hooks-runtime`.
fn check_runtime(config: &ContainerdConfig, host: &DoctorHost) -> Option<HostCheck> {
    let binary = config.binary().filter(|binary| wrapper::is_wrapper(&binary.value, host))?;
    let by = config.add_source(binary.at.to_string());
    Some(wrapper::check(NAME, &binary.value, &by, host))
}

/// Checks for an NRI plugin that applies hook files; `None` if no such plugin is installed.
fn check_nri(config: &ContainerdConfig, host: &DoctorHost) -> Option<HostCheck> {
    if let Some(found) = config.nri_plugin(host) {
        return Some(HostCheck::ok(NAME, found));
    }
    let (_, by) = config.nri();
    let plugin = plugin(config, host)?;
    let plugin = plugin.display();
    let found = format!("NRI is disabled ({by}), so {plugin} does nothing");
    Some(HostCheck::fail(NAME, config.add_source(found), advice(config, host)))
}

/// Finds the plugin that containerd starts, or the service that connects to containerd.
fn plugin(config: &ContainerdConfig, host: &DoctorHost) -> Option<PathBuf> {
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

fn describe_obstacle(config: &ContainerdConfig) -> String {
    let name = config.default_runtime();
    let (is_enabled, by) = config.nri();
    let nri = match is_enabled {
        true => format!("NRI is enabled ({by}), but has no plugin that adds hooks"),
        false => format!("NRI is disabled ({by})"),
    };
    match (config.binary(), config.ignored_binary()) {
        (Some(binary), _) => {
            format!(
                "the runtime {name} is {:?} ({}), which adds no hooks; {nri}",
                binary.value, binary.at
            )
        }
        (None, Some(binary)) => format!(
            "ignores BinaryName ({}), whose table has the name of the CRI plugin in another version of the \
             configuration format; {nri}",
            binary.at
        ),
        (None, None) => {
            format!("the runtime {name} has no BinaryName, and runc adds no hooks; {nri}")
        }
    }
}

fn cri_plugin(version: u64) -> &'static str {
    match version {
        0 | 1 => CRI[0],
        2 => CRI[1],
        _ => CRI[2],
    }
}

/// Returns a hint: the lines to add to the configuration, or the plugin to install.
fn advice(config: &ContainerdConfig, host: &DoctorHost) -> String {
    let file = host.root.join(Path::new(FILE));
    let installed = config.version.map(|version| if version < ENABLES_NRI { 2 } else { 3 });
    let used = config.find(|file| file.number(&["version"]));
    let newest = installed.max(used).unwrap_or_default().max(2);
    // Another version would change the meaning of the other lines in the file.
    let (start, version) = match config.declared_version() {
        Some(version) if (2..=newest).contains(&version) => (String::new(), version),
        _ => (format!("version = {newest}  # at the top\n"), newest),
    };
    let name = config.default_runtime();
    let table = format!("[plugins.{:?}.containerd.runtimes.{name}", cri_plugin(version));
    let runtime = format!(
        "in {}, write\n{start}{table}]\n  runtime_type = \"io.containerd.runc.v2\"\n{table}.options]\n  BinaryName = {:?}",
        file.display(),
        wrapper::path(host)
    );
    let runtime = wrapper::with_install_hint(&runtime, host);
    if config.version.is_some_and(|version| version < HAS_NRI) {
        return runtime;
    }
    let enable = match config.nri().0 {
        true => String::new(),
        false => format!("[plugins.{NRI:?}]\n  disable = false\nand "),
    };
    format!("{runtime}\nor {enable}install {PLUGIN_DIR}/10-{}", PLUGINS[0])
}

//! Combines the image's entrypoint, arguments and environment with those of the request.

use oci_hooks_image::ImageConfig;

use super::options::BundleOptions;
use super::{BundleError, ContainerInit};

/// Returns the arguments of the first process.
pub fn args(image: &ImageConfig, options: &BundleOptions) -> Result<Vec<String>, BundleError> {
    let mut args = Vec::new();
    if let Some(init) = &options.init {
        args.push(ContainerInit::TARGET.to_owned());
        args.extend_from_slice(&init.args);
        if init.idle_only {
            return Ok(args);
        }
    }
    let command = command(image, options);
    if command.is_empty() {
        return Err(BundleError::NoCommand);
    }
    args.extend(command);
    Ok(args)
}

/// Combines entrypoint and command as Docker does: a new entrypoint discards the image's command, a new
/// command keeps the entrypoint.
fn command(image: &ImageConfig, options: &BundleOptions) -> Vec<String> {
    let (entrypoint, default) = match &options.entrypoint {
        Some(entrypoint) => (Some(entrypoint), None),
        None => (image.entrypoint.as_ref(), image.cmd.as_ref()),
    };
    let cmd = if options.args.is_empty() { default } else { Some(&options.args) };
    // `--entrypoint ""` and `ENTRYPOINT [""]` mean no entrypoint.
    let entrypoint = entrypoint.filter(|words| !matches!(&words[..], [word] if word.is_empty()));
    entrypoint.into_iter().chain(cmd).flatten().cloned().collect()
}

/// `PATH` if the image does not set it.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An environment, in the order in which its names first appeared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessEnvironment(Vec<String>);

impl ProcessEnvironment {
    /// Sets entries, replacing existing values. An entry without `=` removes its name, as in Docker.
    pub(super) fn extend<'e>(&mut self, entries: impl IntoIterator<Item = &'e str>) {
        for entry in entries {
            let (name, value) = entry.split_once('=').map_or((entry, None), |(n, v)| (n, Some(v)));
            match value {
                Some(value) => self.set(name, value),
                None => self.0.retain(|entry| name_of(entry) != name),
            }
        }
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        let entry = format!("{name}={value}");
        match self.0.iter_mut().find(|entry| name_of(entry) == name) {
            Some(old) => *old = entry,
            None => self.0.push(entry),
        }
    }

    pub(super) fn set_default(&mut self, name: &str, value: &str) {
        if self.get(name).is_none() {
            self.set(name, value);
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().filter_map(|entry| entry.split_once('=')).find(|e| e.0 == name).map(|e| e.1)
    }

    /// Prepends directories to `PATH`.
    pub(super) fn prepend_path(&mut self, directories: &[String]) {
        if directories.is_empty() {
            return;
        }
        let path = self.get("PATH").filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH);
        let path = format!("{}:{path}", directories.join(":"));
        self.set("PATH", &path);
    }

    pub(super) fn into_entries(self) -> Vec<String> {
        self.0
    }
}

fn name_of(entry: &str) -> &str {
    entry.split_once('=').map_or(entry, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(text: &str) -> Vec<String> {
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    fn run(image: (Option<&str>, Option<&str>), over: (Option<&str>, &str)) -> String {
        let image = ImageConfig {
            entrypoint: image.0.map(split_words),
            cmd: image.1.map(split_words),
            ..ImageConfig::default()
        };
        let options = BundleOptions {
            entrypoint: over.0.map(split_words),
            args: split_words(over.1),
            ..BundleOptions::default()
        };
        args(&image, &options).map_or_else(|error| error.to_string(), |args| args.join(" "))
    }

    #[test]
    fn entrypoint_and_command_combine_as_in_docker() {
        let nothing = BundleError::NoCommand.to_string();
        let both = (Some("/init -x"), Some("serve all"));
        assert_eq!(run(both, (None, "")), "/init -x serve all");
        assert_eq!(run(both, (None, "sh")), "/init -x sh");
        assert_eq!(run(both, (Some("sh -c"), "")), "sh -c");
        assert_eq!(run(both, (Some("sh"), "-c x")), "sh -c x");
        assert_eq!(run(both, (Some(""), "ls")), "ls");
        assert_eq!(run(both, (Some(""), "")), nothing);
        assert_eq!(run((None, Some("serve")), (None, "")), "serve");
        assert_eq!(run((None, None), (None, "")), nothing);
        assert_eq!(run((None, None), (None, "true")), "true");
    }

    #[test]
    fn an_empty_word_is_no_entrypoint() {
        let options = BundleOptions {
            entrypoint: Some(vec![String::new()]),
            args: split_words("ls -l"),
            ..BundleOptions::default()
        };
        assert_eq!(args(&ImageConfig::default(), &options).unwrap(), ["ls", "-l"]);
    }

    #[test]
    fn init_precedes_the_command_or_runs_alone() {
        let image = ImageConfig { cmd: Some(split_words("serve")), ..ImageConfig::default() };
        let mut init =
            ContainerInit { program: "/x".into(), args: split_words("--"), idle_only: false };
        let mut options = BundleOptions { init: Some(init.clone()), ..BundleOptions::default() };
        assert_eq!(args(&image, &options).unwrap(), ["/dev/init", "--", "serve"]);
        init.idle_only = true;
        options.init = Some(init);
        assert_eq!(args(&ImageConfig::default(), &options).unwrap(), ["/dev/init", "--"]);
    }

    #[test]
    fn later_entries_replace_earlier_ones_in_place() {
        let mut environment = ProcessEnvironment::default();
        environment.extend(["A=1", "B=2", "C="]);
        environment.extend(["A=x=y", "B", "INPUT_FETCH-DEPTH=0"]);
        assert_eq!(environment.get("A"), Some("x=y"));
        assert_eq!(environment.into_entries(), ["A=x=y", "C=", "INPUT_FETCH-DEPTH=0"]);
    }

    #[test]
    fn prepended_directories_precede_the_containers_path() {
        let mut environment = ProcessEnvironment::default();
        environment.prepend_path(&["/a".to_owned()]);
        assert_eq!(environment.get("PATH"), Some(&*format!("/a:{DEFAULT_PATH}")));
        environment.set("PATH", "/bin");
        environment.prepend_path(&["/b".to_owned(), "/a".to_owned()]);
        assert_eq!(environment.get("PATH"), Some("/b:/a:/bin"));
        environment.prepend_path(&[]);
        assert_eq!(environment.get("PATH"), Some("/b:/a:/bin"));
    }
}

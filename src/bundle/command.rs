//! What runs: entrypoint and command.

use super::options::Options;
use super::{BundleError, Init};
use crate::image::ImageConfig;

/// Returns the words of the first process.
pub(super) fn args(image: &ImageConfig, options: &Options) -> Result<Vec<String>, BundleError> {
    let mut args = Vec::new();
    if let Some(init) = &options.init {
        args.push(Init::TARGET.to_owned());
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

/// Follows Docker: a new entrypoint makes the image's command meaningless, a new command does not
/// touch the entrypoint.
fn command(image: &ImageConfig, options: &Options) -> Vec<String> {
    let (entrypoint, default) = match &options.entrypoint {
        Some(entrypoint) => (Some(entrypoint), None),
        None => (image.entrypoint.as_ref(), image.cmd.as_ref()),
    };
    let cmd = if options.args.is_empty() { default } else { Some(&options.args) };
    // `--entrypoint ""` and `ENTRYPOINT [""]` mean none.
    let entrypoint = entrypoint.filter(|words| !matches!(&words[..], [word] if word.is_empty()));
    entrypoint.into_iter().chain(cmd).flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_ascii_whitespace().map(str::to_owned).collect()
    }

    fn run(image: (Option<&str>, Option<&str>), over: (Option<&str>, &str)) -> String {
        let image = ImageConfig {
            entrypoint: image.0.map(words),
            cmd: image.1.map(words),
            ..ImageConfig::default()
        };
        let options =
            Options { entrypoint: over.0.map(words), args: words(over.1), ..Options::default() };
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
        let options = Options {
            entrypoint: Some(vec![String::new()]),
            args: words("ls -l"),
            ..Options::default()
        };
        assert_eq!(args(&ImageConfig::default(), &options).unwrap(), ["ls", "-l"]);
    }

    #[test]
    fn the_init_comes_first_or_alone() {
        let image = ImageConfig { cmd: Some(words("serve")), ..ImageConfig::default() };
        let mut init = Init { program: "/x".into(), args: words("--"), idle_only: false };
        let mut options = Options { init: Some(init.clone()), ..Options::default() };
        assert_eq!(args(&image, &options).unwrap(), ["/dev/init", "--", "serve"]);
        init.idle_only = true;
        options.init = Some(init);
        assert_eq!(args(&ImageConfig::default(), &options).unwrap(), ["/dev/init", "--"]);
    }
}

//! Loaded hooks in order of injection, and the selection that applies to a container.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::consumer::Consumer;
use super::{
    EmptyArgs, Hook, HookDefinition, HookStage, MatchError, MatchEvaluation, MatchReason,
    MatchTarget, OciStage,
};

/// A hook file that was loaded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookFile {
    /// File name. A file of the same name in a later directory hides this file.
    pub name: OsString,
    pub path: PathBuf,
    pub definition: HookDefinition,
    /// Sort key, if it differs from the name.
    order: Option<Box<[u8]>>,
}

impl HookFile {
    /// Returns a hook file named after its path.
    pub fn new(path: PathBuf, definition: HookDefinition) -> Self {
        let name = path.file_name().unwrap_or_default().to_owned();
        Self::with_name(name, path, definition)
    }

    /// Returns a hook file with `name`, the file name of `path`.
    pub(super) fn with_name(name: OsString, path: PathBuf, definition: HookDefinition) -> Self {
        let order = match order_key(&name) {
            Cow::Borrowed(_) => None,
            Cow::Owned(key) => Some(key.into()),
        };
        HookFile { order, name, path, definition }
    }

    fn order(&self) -> &[u8] {
        self.order.as_deref().unwrap_or(self.name.as_bytes())
    }
}

/// Hooks that can be matched against any number of containers, without I/O.
///
/// Sorted in order of injection: by lower-cased file name, then by name.
#[derive(Clone, Debug, Default)]
pub struct HookSet {
    files: Vec<HookFile>,
}

/// The result of evaluating one hook's conditions for a container.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HookVerdict<'a> {
    pub file: &'a HookFile,
    /// Result with the deciding condition; after an error, podman injects no hooks at all.
    pub outcome: Result<MatchEvaluation<'a>, EmptyArgs>,
}

impl HookVerdict<'_> {
    /// Returns whether the hook applies.
    pub fn matches(&self) -> bool {
        self.outcome.is_ok_and(|outcome| outcome.matched)
    }
}

impl HookSet {
    /// Returns the hooks in order of injection.
    pub fn iter(&self) -> std::slice::Iter<'_, HookFile> {
        self.files.iter()
    }

    /// Returns the number of hooks.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Finds a hook by its file name.
    pub fn get(&self, name: &OsStr) -> Option<&HookFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Evaluates the conditions of each hook, in order of injection.
    pub fn evaluate<'a>(
        &'a self,
        target: &'a MatchTarget,
    ) -> impl Iterator<Item = HookVerdict<'a>> {
        let verdict = |file: &'a HookFile| {
            let outcome = file.definition.when.evaluate(target);
            HookVerdict { file, outcome }
        };
        self.files.iter().map(verdict)
    }
}

impl<'a> IntoIterator for &'a HookSet {
    type Item = &'a HookFile;
    type IntoIter = std::slice::Iter<'a, HookFile>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<HookFile> for HookSet {
    fn from_iter<I: IntoIterator<Item = HookFile>>(files: I) -> Self {
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_unstable_by(|a, b| (a.order(), &a.name).cmp(&(b.order(), &b.name)));
        HookSet { files }
    }
}

/// Lower-cases a file name as Go does, character by character.
///
/// Rust's `str::to_lowercase` handles final sigma and maps `İ` to two characters; Go does neither.
/// Files with equal keys have no defined order in Go; here the names themselves decide.
pub fn order_key(name: &OsStr) -> Cow<'_, [u8]> {
    let bytes = name.as_bytes();
    if bytes.is_ascii() {
        let is_lower = !bytes.iter().any(u8::is_ascii_uppercase);
        return if is_lower { bytes.into() } else { bytes.to_ascii_lowercase().into() };
    }
    let mut key = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        key.extend(chunk.valid().chars().map(|c| match c {
            'İ' => 'i',
            c => c.to_lowercase().next().unwrap_or(c),
        }));
        key.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    Cow::Owned(key.into_bytes())
}

/// Returns whether a file of this name is read as a hook file: it ends in `.json`.
pub fn is_hook_file_name(name: &OsStr) -> bool {
    // `Path::extension` returns `None` for `.json`, which counts.
    Path::new(name).as_os_str().as_bytes().ends_with(b".json")
}

/// Returns whether a directory has a file with the name of a hook file.
pub fn has_hook_files(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| is_hook_file_name(&entry.file_name()))
}

/// The hooks that apply to one container.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookSelection<'a> {
    /// The hook files that match, in order of injection.
    pub files: Vec<&'a HookFile>,
    /// The deciding condition of each file.
    pub reasons: Vec<MatchReason<'a>>,
    /// One entry for each file and stage, in order of injection.
    pub injections: Vec<HookInjection<'a>>,
}

/// One hook at one stage.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookInjection<'a> {
    /// The file the hook comes from.
    pub file: &'a HookFile,
    /// Stage of injection, which the consumer decides for `prestart` hooks.
    pub stage: HookStage,
    pub hook: Cow<'a, Hook>,
}

impl HookSet {
    /// Finds the hooks that apply to a container.
    ///
    /// If one hook cannot be matched, none is injected, as in podman.
    pub fn select<'a>(
        &'a self,
        target: &'a MatchTarget,
        consumer: &Consumer,
    ) -> Result<HookSelection<'a>, MatchError> {
        let (mut files, mut reasons) = (Vec::new(), Vec::new());
        for verdict in self.evaluate(target) {
            match verdict.outcome {
                Ok(outcome) if outcome.matched => {
                    files.push(verdict.file);
                    reasons.push(outcome.reason);
                }
                Ok(_) => {}
                Err(source) => return Err(MatchError { path: verdict.file.path.clone(), source }),
            }
        }
        let injections = files
            .iter()
            .flat_map(|&file| {
                file.definition.stages.iter().map(move |stage| HookInjection {
                    file,
                    stage: match stage {
                        HookStage::Oci(OciStage::Prestart) => HookStage::Oci(consumer.prestart),
                        stage => stage.clone(),
                    },
                    hook: Cow::Borrowed(&file.definition.hook),
                })
            })
            .collect();
        Ok(HookSelection { files, reasons, injections })
    }
}

impl<'a> HookSelection<'a> {
    /// Returns the hooks for one stage of the runtime specification.
    pub fn hooks_at(&self, stage: OciStage) -> impl Iterator<Item = &Hook> {
        let wanted = HookStage::Oci(stage);
        self.injections.iter().filter(move |i| i.stage == wanted).map(|i| i.hook.as_ref())
    }

    /// Returns the hooks that the consumer runs itself, by stage.
    pub fn extension_hooks(&self) -> BTreeMap<&str, Vec<&Hook>> {
        let mut hooks = BTreeMap::<_, Vec<_>>::new();
        for injection in &self.injections {
            if let HookStage::Extension(name) = &injection.stage {
                hooks.entry(name.as_str()).or_default().push(injection.hook.as_ref());
            }
        }
        hooks
    }

    /// Gives hooks without an environment an empty one.
    ///
    /// A hook without an environment inherits the runtime's, which at `createContainer` contains
    /// the image's variables: `LD_PRELOAD` of an image then reaches a program of the host
    /// (CVE-2025-23266).
    pub fn set_missing_env(&mut self) {
        for injection in &mut self.injections {
            if injection.hook.env.is_none() {
                injection.hook.to_mut().env = Some(Vec::new());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> String {
        String::from_utf8(order_key(OsStr::new(name)).into_owned()).unwrap()
    }

    #[test]
    fn names_are_lower_cased_like_in_go() {
        assert_eq!(key("A-Z.json"), "a-z.json");
        assert_eq!(key("İ\u{212a}ẞΣΑΣ.json"), "ikßσασ.json");
        assert_eq!(
            order_key(OsStr::from_bytes(b"\xff\xc3\xa9.json")).as_ref(),
            "\u{fffd}é.json".as_bytes()
        );
    }

    #[test]
    fn only_the_exact_suffix_is_accepted() {
        for (name, counts) in [
            ("a.json", true),
            (".json", true),
            ("a.JSON", false),
            ("a.json.bak", false),
            ("json", false),
        ] {
            assert_eq!(is_hook_file_name(OsStr::new(name)), counts, "{name}");
        }
    }
}

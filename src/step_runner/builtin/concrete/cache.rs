//! Caches. Their URLs are arguments of GitLab's program, which has no other way to get them; they are
//! signed for one object and a short time. Keys of stores are in its environment.

use super::super::error::{BuiltinError, CommandError, Within as _};
use super::artifacts::words;
use super::config::{CacheArchive, CacheExtract, CacheSource, Descriptor};
use super::context::{JobContext, attempts};
use super::go;

impl JobContext<'_> {
    /// Restores a cache. That there is none is no error.
    pub(super) fn restore(&mut self, cache: &CacheExtract) {
        for warning in &cache.warnings {
            self.warn(warning);
        }
        let count = attempts(cache.max_attempts);
        for attempt in 1..=count {
            if attempt > 1 {
                if !self.is_running() {
                    return;
                }
                if cache.use_exponential_backoff_stage_retry {
                    self.pause(attempt);
                }
                self.warn(&format!("Retrying cache extraction (attempt {attempt}/{count})..."));
            }
            for (index, source) in cache.sources.iter().enumerate() {
                for warning in &source.warnings {
                    self.warn(warning);
                }
                let fallback = if index == 0 { "" } else { " (fallback)" };
                self.notice(&format!("Checking cache for {}{fallback}...", source.name));
                match self.extract(cache, source) {
                    Ok(()) => {
                        self.notice("Successfully extracted cache");
                        return;
                    }
                    Err(error) => {
                        let name = &source.name;
                        self.warn(&format!("Failed to extract cache {name}: {error}"));
                    }
                }
            }
        }
    }

    fn extract(&mut self, cache: &CacheExtract, source: &CacheSource) -> Result<(), CommandError> {
        let file = self.archive_path(&source.key);
        let timeout = cache.timeout.to_string();
        let mut arguments = words(&["cache-extractor", "--file", &file, "--timeout", &timeout]);
        let Descriptor { head_url, .. } = &source.descriptor;
        arguments.extend(url(&source.descriptor, ["--url", "--gocloud-url"]));
        if !head_url.is_empty() {
            arguments.extend(words(&["--head-url", head_url]));
        }
        let other = &source.alternate_descriptor;
        arguments.extend(url(other, ["--alternate-url", "--alternate-gocloud-url"]));
        if !other.url.is_empty() && !other.head_url.is_empty() {
            arguments.extend(words(&["--alternate-head-url", &other.head_url]));
        }
        // The first URL is asked first: its keys count.
        let mut env = other.env.clone();
        env.extend(source.descriptor.env.clone());
        self.gitlab(&arguments, &env)
    }

    /// Makes and stores a cache.
    pub(super) fn archive(&mut self, cache: &CacheArchive) -> Result<(), BuiltinError> {
        let CacheArchive { key, descriptor, .. } = cache;
        if !self.applies(cache.on_success, cache.on_failure) {
            self.notice(&format!("Skipping cache {key}: not for this status of the job"));
            return Ok(());
        }
        let chosen = cache.paths.iter().flat_map(|path| words(&["--path", path]));
        let untracked = cache.untracked.then(|| "--untracked".to_owned());
        let what: Vec<_> = chosen.chain(untracked).collect();
        if what.is_empty() {
            self.notice(&format!("Skipping cache {key}: there are no paths"));
            return Ok(());
        }
        self.notice(&format!("Creating cache {key}..."));
        let (file, timeout) = (self.archive_path(key), cache.timeout.to_string());
        let mut arguments = words(&["cache-archiver", "--file", &file, "--timeout", &timeout]);
        if !cache.alternate_key.is_empty() && cache.alternate_key != *key {
            let other = self.archive_path(&cache.alternate_key);
            arguments.extend(words(&["--alternate-file", &other]));
        }
        if cache.max_uploaded_archive_size > 0 {
            let size = cache.max_uploaded_archive_size.to_string();
            arguments.extend(words(&["--max-uploaded-archive-size", &size]));
        }
        arguments.extend(what);
        arguments.extend(url(descriptor, ["--url", "--gocloud-url"]));
        if !descriptor.head_url.is_empty() {
            arguments.extend(words(&["--check-url", &descriptor.head_url]));
        }
        for (name, values) in &descriptor.headers {
            for value in values {
                arguments.extend(words(&["--header", &format!("{name}: {value}")]));
            }
        }
        let mut env = descriptor.env.clone();
        env.insert("CACHE_METADATA".to_owned(), go::json(&[("cachekey", &cache.name)]));
        let stored = self.gitlab(&arguments, &env);
        match &stored {
            Ok(()) => self.notice("Created cache"),
            Err(_) => self.warn("Failed to create cache"),
        }
        stored.within(format!("archiving cache {key}"))
    }

    fn archive_path(&self, key: &str) -> String {
        go::archive_path(&self.config.cache_dir, key, &self.work_dir.to_string_lossy())
    }
}

/// Returns the argument with the URL of an object, one for stores that need keys.
fn url(descriptor: &Descriptor, [signed, store]: [&str; 2]) -> Vec<String> {
    let option = if descriptor.go_cloud_url { store } else { signed };
    match descriptor.url.as_str() {
        "" => Vec::new(),
        url => words(&[option, url]),
    }
}

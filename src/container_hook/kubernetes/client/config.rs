//! Where the cluster is, and which namespace is ours.

use std::io;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::error::ClusterError;

/// Returns how to connect, and the namespace: the one that is given, else that of the kubeconfig's
/// current context, else of the first one that has any, else the service account's.
pub(super) async fn load(namespace: Option<&str>) -> Result<(Config, String), ClusterError> {
    let given = namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned);
    let (mut config, own) = match Kubeconfig::read() {
        Ok(file) => {
            let own = namespace_of(&file);
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            (config.map_err(|error| ClusterError::Kubeconfig(Box::new(error)))?, own)
        }
        Err(error) if is_absent(&error) => {
            let config = Config::incluster().map_err(|error| {
                let in_cluster = Box::new(error);
                ClusterError::NotConfigured { in_cluster }
            })?;
            let own = Some(config.default_namespace.clone());
            (config, own)
        }
        Err(error) => return Err(ClusterError::Kubeconfig(Box::new(error))),
    };
    // Repeating is our business: it has rules of its own for each call.
    config.default_retry = false;
    config.connect_timeout = Some(std::time::Duration::from_secs(10));
    let namespace = given.or(own).ok_or(ClusterError::NoNamespace)?;
    Ok((config, namespace))
}

fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn namespace_of(file: &Kubeconfig) -> Option<String> {
    let current =
        file.contexts.iter().filter(|one| Some(&one.name) == file.current_context.as_ref());
    let mut contexts = current.chain(&file.contexts).filter_map(|one| one.context.as_ref());
    let namespace = contexts.find_map(|context| context.namespace.clone());
    namespace.filter(|namespace| !namespace.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_comes_before_the_first_that_has_a_namespace() {
        let file = |current: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: {current}\ncontexts:\n\
                 - {{name: a, context: {{cluster: c, user: u}}}}\n\
                 - {{name: b, context: {{cluster: c, user: u, namespace: of-b}}}}\n\
                 - {{name: c, context: {{cluster: c, user: u, namespace: of-c}}}}\n"
            );
            Kubeconfig::from_yaml(&text).unwrap()
        };
        assert_eq!(namespace_of(&file("c")).as_deref(), Some("of-c"));
        assert_eq!(namespace_of(&file("a")).as_deref(), Some("of-b"));
        assert_eq!(namespace_of(&Kubeconfig::default()), None);
    }
}

//! One network a job: namespaces, a bridge, addresses, published ports.

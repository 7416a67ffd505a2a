//! Addresses at which clouds tell a machine who it is, and give its credentials to whoever asks from there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that only a machine of a cloud has something behind.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    pub address: IpAddr,
    /// Whose it is, and what for.
    pub cloud: &'static str,
    /// Where the cloud, or a program for its machines, says so.
    pub source: &'static str,
}

const fn v4(bytes: [u8; 4], cloud: &'static str, source: &'static str) -> Metadata {
    let address = IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]));
    Metadata { address, cloud, source }
}

const fn v6(parts: [u16; 8], cloud: &'static str, source: &'static str) -> Metadata {
    let [a, b, c, d, e, f, g, h] = parts;
    let address = IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h));
    Metadata { address, cloud, source }
}

/// All of them. What is link-local is there for the record: no address of that kind is reached.
pub const METADATA: &[Metadata] = &[
    // Amazon, Google, Azure, DigitalOcean, Oracle, OpenStack, Hetzner, IBM, Huawei, Vultr, Linode, UpCloud,
    // Exoscale, Yandex, NAVER and others have the same one.
    v4(
        [169, 254, 169, 254],
        "most clouds",
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html",
    ),
    v6(
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
        "Amazon EC2",
        "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html",
    ),
    v4(
        [169, 254, 170, 2],
        "Amazon ECS, roles of tasks",
        "https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html",
    ),
    v4(
        [169, 254, 170, 23],
        "Amazon EKS, pod identity",
        "https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html",
    ),
    v6(
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23],
        "Amazon EKS, pod identity",
        "https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html",
    ),
    v6(
        [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
        "Google Compute Engine",
        "https://cloud.google.com/compute/docs/metadata/querying-metadata",
    ),
    v4(
        [168, 63, 129, 16],
        "Azure, the wire server, which is the resolver too",
        "https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16",
    ),
    v6(
        [0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe],
        "Oracle Cloud Infrastructure",
        "https://github.com/oracle/oci-python-sdk, oci/auth/signers",
    ),
    v4(
        [192, 0, 0, 192],
        "Oracle Cloud at Customer",
        "https://docs.oracle.com/en/cloud/cloud-at-customer/occ-get-started/retrieve-predefined-instance-metadata.html",
    ),
    v4(
        [169, 254, 0, 2],
        "Oracle Cloud Infrastructure, the boot volume by iSCSI",
        "https://docs.oracle.com/iaas/Content/Compute/References/bestpracticescompute.htm",
    ),
    v4(
        [100, 100, 100, 200],
        "Alibaba Cloud",
        "https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata",
    ),
    v6(
        [0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200],
        "Alibaba Cloud",
        "https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata",
    ),
    v4(
        [169, 254, 0, 23],
        "Tencent Cloud",
        "https://www.tencentcloud.com/document/product/213/4934",
    ),
    v4(
        [169, 254, 10, 10],
        "Tencent Cloud",
        "https://www.tencentcloud.com/document/product/213/4934",
    ),
    v4(
        [169, 254, 42, 42],
        "Scaleway",
        "https://cloudinit.readthedocs.io/en/latest/reference/datasources/scaleway.html",
    ),
    v6(
        [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42],
        "Scaleway",
        "https://cloudinit.readthedocs.io/en/latest/reference/datasources/scaleway.html",
    ),
    v6(
        [0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1],
        "Linode",
        "https://techdocs.akamai.com/cloud-computing/docs/metadata-service-api",
    ),
    v4(
        [100, 96, 0, 96],
        "Volcano Engine",
        "https://github.com/volcengine/cello, pkg/provider/volcengine/credential",
    ),
    v4([100, 80, 80, 80], "UCloud", "https://docs.ucloud.cn/uhost/guide/metadata/metadata-server"),
];

/// Returns whether an address is one of them. Link-local addresses count only if they are in the table.
pub fn is_metadata(address: IpAddr) -> bool {
    METADATA.iter().any(|metadata| metadata.address == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_stands_there_twice_and_each_has_a_source() {
        for (at, metadata) in METADATA.iter().enumerate() {
            let again = &METADATA[at + 1..];
            assert!(!again.iter().any(|other| other.address == metadata.address), "{metadata:?}");
            assert!(metadata.source.starts_with("https://"), "{metadata:?}");
        }
        assert!(is_metadata("168.63.129.16".parse().unwrap()));
        assert!(is_metadata("fd00:42::42".parse().unwrap()));
        assert!(!is_metadata("168.63.129.17".parse().unwrap()));
    }
}

//! Addresses of cloud metadata services, which hand out a machine's credentials to any process on it. The engine's
//! firewall blocks them for jobs, and the registry client rejects servers that refer to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of a cloud metadata service.
#[derive(Clone, Copy, Debug)]
pub struct MetadataAddress {
    pub address: IpAddr,
    /// The cloud provider, and the service.
    pub cloud: &'static str,
    /// Documentation of the address, or a program that uses it.
    pub source: &'static str,
}

const fn v4(bytes: [u8; 4], cloud: &'static str, source: &'static str) -> MetadataAddress {
    let address = IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]));
    MetadataAddress { address, cloud, source }
}

const fn v6(parts: [u16; 8], cloud: &'static str, source: &'static str) -> MetadataAddress {
    let [a, b, c, d, e, f, g, h] = parts;
    let address = IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h));
    MetadataAddress { address, cloud, source }
}

// Documentation of the addresses, or programs that use them.
const EC2: &str =
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html";
const ECS: &str = "https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html";
const EKS: &str = "https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html";
const GOOGLE: &str = "https://cloud.google.com/compute/docs/metadata/querying-metadata";
const AZURE: &str =
    "https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16";
const ORACLE: &str = "https://github.com/oracle/oci-python-sdk, oci/auth/signers";
const ORACLE_AT_CUSTOMER: &str = "https://docs.oracle.com/en/cloud/cloud-at-customer/occ-get-started/retrieve-predefined-instance-metadata.html";
const ORACLE_BOOT: &str =
    "https://docs.oracle.com/iaas/Content/Compute/References/bestpracticescompute.htm";
const ALIBABA: &str = "https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata";
const TENCENT: &str = "https://www.tencentcloud.com/document/product/213/4934";
const SCALEWAY: &str =
    "https://cloudinit.readthedocs.io/en/latest/reference/datasources/scaleway.html";
const LINODE: &str = "https://techdocs.akamai.com/cloud-computing/docs/metadata-service-api";
const VOLCANO: &str = "https://github.com/volcengine/cello, pkg/provider/volcengine/credential";
const UCLOUD: &str = "https://docs.ucloud.cn/uhost/guide/metadata/metadata-server";

/// All known metadata addresses. Link-local ones are listed for completeness: containers reach no such address.
pub const METADATA: &[MetadataAddress] = &[
    // Amazon, Google, Azure, DigitalOcean, Oracle, OpenStack, Hetzner, IBM, Huawei, Vultr, Linode, UpCloud,
    // Exoscale, Yandex, NAVER and others use the same address.
    v4([169, 254, 169, 254], "most clouds", EC2),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], "Amazon EC2", EC2),
    v4([169, 254, 170, 2], "Amazon ECS, roles of tasks", ECS),
    v4([169, 254, 170, 23], "Amazon EKS, pod identity", EKS),
    v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], "Amazon EKS, pod identity", EKS),
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], "Google Compute Engine", GOOGLE),
    v4([168, 63, 129, 16], "Azure, the wire server, which is the resolver too", AZURE),
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], "Oracle Cloud Infrastructure", ORACLE),
    v4([192, 0, 0, 192], "Oracle Cloud at Customer", ORACLE_AT_CUSTOMER),
    v4([169, 254, 0, 2], "Oracle Cloud Infrastructure, the boot volume by iSCSI", ORACLE_BOOT),
    v4([100, 100, 100, 200], "Alibaba Cloud", ALIBABA),
    v6([0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200], "Alibaba Cloud", ALIBABA),
    v4([169, 254, 0, 23], "Tencent Cloud", TENCENT),
    v4([169, 254, 10, 10], "Tencent Cloud", TENCENT),
    v4([169, 254, 42, 42], "Scaleway", SCALEWAY),
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], "Scaleway", SCALEWAY),
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1], "Linode", LINODE),
    v4([100, 96, 0, 96], "Volcano Engine", VOLCANO),
    v4([100, 80, 80, 80], "UCloud", UCLOUD),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_addresses_are_unique_and_have_a_source() {
        for (at, metadata) in METADATA.iter().enumerate() {
            let again = &METADATA[at + 1..];
            assert!(!again.iter().any(|other| other.address == metadata.address), "{metadata:?}");
            assert!(metadata.source.starts_with("https://"), "{metadata:?}");
        }
    }
}

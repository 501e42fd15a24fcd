//! An empty disk that shows another one until it is written to.
//!
//! A qcow2 image of four clusters: header, table of counts, counts, and the table of what was written (nothing). It is
//! written here, so that no program has to be started for it, and it names the format of what is below it, so that nothing
//! is guessed from bytes that a guest wrote.

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;

/// The image: `size` bytes that are those of `backing`, a file of `format`, for whoever opens it.
pub fn overlay(size: u64, backing: &str, format: &str) -> Vec<u8> {
    let mut image = vec![0; 4 * CLUSTER as usize];
    // One entry for each table of 8,192 clusters; one cluster of them is enough for 4 TiB.
    let entries = size.div_ceil(CLUSTER * (CLUSTER / 8)).min(CLUSTER / 8) as u32;
    let mut head = Vec::new();
    head.extend_from_slice(b"QFI\xfb");
    head.extend_from_slice(&3u32.to_be_bytes());
    let name_at = 112 + 8 + format.len().next_multiple_of(8) + 8;
    head.extend_from_slice(&(name_at as u64).to_be_bytes());
    head.extend_from_slice(&(backing.len() as u32).to_be_bytes());
    head.extend_from_slice(&CLUSTER_BITS.to_be_bytes());
    head.extend_from_slice(&size.to_be_bytes());
    head.extend_from_slice(&0u32.to_be_bytes()); // not encrypted
    head.extend_from_slice(&entries.to_be_bytes());
    head.extend_from_slice(&(3 * CLUSTER).to_be_bytes()); // what was written
    head.extend_from_slice(&CLUSTER.to_be_bytes()); // table of counts
    head.extend_from_slice(&1u32.to_be_bytes()); // of one cluster
    head.extend_from_slice(&[0; 12]); // no snapshots
    head.extend_from_slice(&[0; 24]); // no features
    head.extend_from_slice(&4u32.to_be_bytes()); // counts of 16 bits
    head.extend_from_slice(&112u32.to_be_bytes()); // length of the header
    head.resize(112, 0);
    head.extend_from_slice(&0xE279_2ACAu32.to_be_bytes());
    head.extend_from_slice(&(format.len() as u32).to_be_bytes());
    head.extend_from_slice(format.as_bytes());
    head.resize(name_at - 8, 0);
    head.extend_from_slice(&[0; 8]); // no more extensions
    head.extend_from_slice(backing.as_bytes());
    image[..head.len()].copy_from_slice(&head);
    let at = |cluster: u64| (cluster * CLUSTER) as usize;
    image[at(1)..at(1) + 8].copy_from_slice(&(2 * CLUSTER).to_be_bytes());
    for number in 0..4 {
        let count = at(2) + 2 * number;
        image[count..count + 2].copy_from_slice(&1u16.to_be_bytes());
    }
    image
}

//! Indexes of vectors: every type of rows against plain sums, and files that lie.

use std::fs;
use std::path::PathBuf;

use engine::vector_index::{Id, RowType, VectorIndex};
use engine::{CancelToken, Error};
use sha2::{Digest, Sha256};

const TYPES: [RowType; 3] = [RowType::F32, RowType::Int8, RowType::Binary];

fn vector(seed: usize, dimension: usize) -> Vec<f32> {
    (0..dimension)
        .map(|at| (((seed + 1) * 7919 + at * 104_729) % 2003) as f32 / 1001.0 - 1.0)
        .collect()
}

fn packed(vector: &[f32]) -> Vec<u8> {
    vector
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn filled(row_type: RowType, count: usize, dimension: usize) -> VectorIndex {
    let mut index = VectorIndex::new(dimension, row_type).unwrap();
    for row in 0..count {
        index
            .add(Id::Integer(row as i64), &packed(&vector(row, dimension)))
            .unwrap();
    }
    index
}

fn search(index: &VectorIndex, query: &[f32], most: usize) -> Vec<(Id, f32)> {
    let cancel = CancelToken::new();
    index
        .search(&packed(query), most, None, None, &cancel)
        .unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let sum = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    sum(a, b) / (sum(a, a) * sum(b, b)).sqrt()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("red-candle-index-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn every_row_type_finds_what_plain_sums_find() {
    for dimension in [3, 37, 384] {
        let query = vector(99_991, dimension);
        for (row_type, tolerance) in [(RowType::F32, 1e-5), (RowType::Int8, 0.02)] {
            let index = filled(row_type, 2500, dimension);
            let found = search(&index, &query, 10);
            let mut wanted: Vec<f64> = (0..2500)
                .map(|row| cosine(&vector(row, dimension), &query))
                .collect();
            wanted.sort_by(|a, b| b.total_cmp(a));
            for ((id, score), best) in found.iter().zip(&wanted) {
                assert!(
                    (f64::from(*score) - best).abs() < tolerance,
                    "{row_type:?} {dimension}"
                );
                let Id::Integer(row) = id else { panic!("{id}") };
                let own = cosine(&vector(*row as usize, dimension), &query);
                assert!((f64::from(*score) - own).abs() < tolerance);
            }
        }
        let signs = |values: &[f32]| -> Vec<f32> {
            let sign = |value: &f32| if *value > 0.0 { 1.0 } else { -1.0 };
            values.iter().map(sign).collect()
        };
        let index = filled(RowType::Binary, 2500, dimension);
        for (id, score) in search(&index, &query, 10) {
            let Id::Integer(row) = id else { panic!("{id}") };
            let own = cosine(&signs(&vector(row as usize, dimension)), &signs(&query));
            assert!((f64::from(score) - own).abs() < 1e-5);
        }
    }
}

#[test]
fn vectors_are_replaced_deleted_and_looked_for_among_some() {
    for row_type in TYPES {
        let mut index = filled(row_type, 50, 16);
        let query = vector(7, 16);
        assert_eq!(search(&index, &query, 1)[0].0, Id::Integer(7));
        assert!(index.delete(&Id::Integer(7)).unwrap());
        assert!(!index.delete(&Id::Integer(7)).unwrap());
        assert_eq!(index.len(), 49);
        assert!(search(&index, &query, 50)
            .iter()
            .all(|(id, _)| *id != Id::Integer(7)));
        index.add(Id::Integer(3), &packed(&query)).unwrap();
        assert_eq!(
            (index.len(), search(&index, &query, 1)[0].0.clone()),
            (49, Id::Integer(3))
        );
        let some = [Id::Integer(7), Id::Integer(9), Id::Integer(11)];
        let rows = index.rows_of(&some);
        let cancel = CancelToken::new();
        let found = index
            .search(&packed(&query), 9, Some(&rows), None, &cancel)
            .unwrap();
        assert_eq!(found.len(), 2);
    }
}

#[test]
fn a_file_holds_what_was_saved_and_grows_by_what_is_added() {
    let folder = Folder::new("saved");
    let cancel = CancelToken::new();
    for row_type in TYPES {
        let path = folder.0.join(row_type.name());
        let mut index = filled(row_type, 1500, 33);
        index
            .add(Id::Text("ü".into()), &packed(&vector(1800, 33)))
            .unwrap();
        index.delete(&Id::Integer(0)).unwrap();
        index.save(&path, &cancel).unwrap();
        let mut opened = VectorIndex::open(&path, &cancel).unwrap();
        let query = vector(1800, 33);
        assert_eq!(search(&opened, &query, 5), search(&index, &query, 5));
        assert_eq!((opened.len(), opened.dimension()), (1500, 33));
        opened.add(Id::Integer(0), &packed(&vector(0, 33))).unwrap();
        opened.add(Id::Integer(5), &packed(&query)).unwrap();
        opened.delete(&Id::Text("ü".into())).unwrap();
        opened.save(&path, &cancel).unwrap();
        let again = VectorIndex::open(&path, &cancel).unwrap();
        for index in [&again, &opened] {
            let found = search(index, &query, 1500);
            let replaced = found.iter().find(|(id, _)| *id == Id::Integer(5)).unwrap();
            assert!(replaced.1 > 0.999, "{row_type:?} {}", replaced.1);
        }
        assert_eq!(again.len(), 1500);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn files_that_lie_are_refused() {
    let folder = Folder::new("hostile");
    let cancel = CancelToken::new();
    let path = folder.0.join("index");
    filled(RowType::Int8, 20, 8).save(&path, &cancel).unwrap();
    let sound = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = VectorIndex::open(&path, &cancel).err();
        assert!(matches!(error, Some(Error::CorruptModel(_))), "{error:?}");
    };
    for end in [0, 7, 63, 64, 100, sound.len() - 1] {
        refused(&sound[..end]);
    }
    refused(&[&sound[..], &[0]].concat());
    // All but the rows is covered by the checksum; sizes that can't be are refused before anything is made of them.
    let rows = 64..64 + 20 * 8;
    for at in (0..sound.len()).filter(|at| !rows.contains(at) && !(48..64).contains(at)) {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = sound.clone();
            bytes[at] ^= change;
            refused(&bytes);
        }
    }
    for field in [16, 24, 32] {
        let mut bytes = sound.clone();
        bytes[field..field + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        refused(&bytes);
    }
    let missing = VectorIndex::open(&folder.0.join("none"), &cancel).err();
    assert!(matches!(missing, Some(Error::InvalidInput(_))));
}

#[test]
fn wrong_vectors_are_refused_and_a_failed_save_keeps_the_file() {
    let cancel = CancelToken::new();
    assert!(VectorIndex::new(0, RowType::F32).is_err());
    for row_type in TYPES {
        let mut index = filled(row_type, 3, 8);
        for bytes in [
            vec![0; 3],
            vec![0; 33],
            packed(&[f32::NAN; 8]),
            packed(&[f32::INFINITY; 8]),
        ] {
            assert!(matches!(
                index.add(Id::Integer(9), &bytes),
                Err(Error::InvalidInput(_))
            ));
            assert!(index.search(&bytes, 1, None, None, &cancel).is_err());
        }
        assert_eq!(index.len(), 3);
        let zeros = packed(&[0.0; 8]);
        index.add(Id::Integer(9), &zeros).unwrap();
        assert!(index.search(&zeros, 9, None, None, &cancel).unwrap().len() == 4);
    }
    let folder = Folder::new("failed");
    let path = folder.0.join("index");
    filled(RowType::F32, 3, 8).save(&path, &cancel).unwrap();
    let before = fs::read(&path).unwrap();
    let stopped = CancelToken::new();
    stopped.cancel();
    assert!(filled(RowType::F32, 9, 8).save(&path, &stopped).is_err());
    assert!(filled(RowType::F32, 9, 8)
        .save(&folder.0.join("none/x"), &cancel)
        .is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

/// Vectors around a few hundred centers, as those of texts are.
fn clustered(seed: usize) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut noise = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let center = vector((noise() * 150.0) as usize + 150, WIDTH);
    center.iter().map(|at| at + 0.6 * noise()).collect()
}

const WIDTH: usize = 24;
const COUNT: usize = 20 * 256;

fn build(index: &mut VectorIndex, links: usize) {
    let cancel = CancelToken::new();
    index.start_graph(links).unwrap();
    while let Some(block) = index.build_graph(64, &cancel).unwrap() {
        index.grow_graph(block).unwrap();
    }
}

fn with_graph(row_type: RowType, count: usize, links: usize) -> VectorIndex {
    let mut index = VectorIndex::new(WIDTH, row_type).unwrap();
    for row in 0..count {
        let id = Id::Integer(row as i64);
        index.add(id, &packed(&clustered(row))).unwrap();
    }
    build(&mut index, links);
    index
}

fn searched(index: &VectorIndex, query: &[f32], most: usize, effort: usize) -> Vec<(Id, f32)> {
    let cancel = CancelToken::new();
    let found = index.search(&packed(query), most, None, Some(effort), &cancel);
    found.unwrap()
}

/// How many of the ten best a search finds; another row with the same score is as good.
fn recall(index: &VectorIndex, effort: usize) -> f64 {
    let mut hits = 0;
    for seed in 0..100 {
        let query = clustered(1_000_000 + seed);
        let least = search(index, &query, 10)[9].1;
        let found = searched(index, &query, 10, effort);
        hits += found.iter().filter(|(_, score)| *score >= least).count();
    }
    hits as f64 / 1000.0
}

#[test]
fn a_graph_leads_to_nearly_all_of_the_nearest() {
    for row_type in TYPES {
        let index = with_graph(row_type, COUNT + 100, 12);
        assert_eq!(index.graph(), Some((12, COUNT)));
        let (little, usual, much) = (recall(&index, 10), recall(&index, 64), recall(&index, 200));
        assert!(usual >= 0.95, "{row_type:?} {usual}");
        assert!(
            little <= usual && usual <= much,
            "{row_type:?} {little} {much}"
        );
        assert!(row_type != RowType::F32 || little < much, "{little} {much}");
    }
}

#[test]
fn the_same_rows_give_the_same_graph_whenever_it_is_built() {
    let folder = Folder::new("same");
    let cancel = CancelToken::new();
    let saved = |index: &VectorIndex, name: &str| {
        let path = folder.0.join(name);
        index.save(&path, &cancel).unwrap();
        fs::read(path).unwrap()
    };
    let at_once = saved(&with_graph(RowType::F32, 1500, 6), "at_once");
    let mut index = VectorIndex::new(WIDTH, RowType::F32).unwrap();
    for row in 0..1500 {
        let id = Id::Integer(row as i64);
        index.add(id, &packed(&clustered(row))).unwrap();
        if row % 300 == 0 {
            build(&mut index, 6);
        }
    }
    build(&mut index, 6);
    assert!(saved(&index, "by_and_by") == at_once);
    build(&mut index, 7);
    assert_eq!(index.graph(), Some((7, 1280)));
    assert!(saved(&index, "other") != at_once);
}

#[test]
fn a_graph_is_saved_grows_and_loses_rows() {
    let folder = Folder::new("grown");
    let cancel = CancelToken::new();
    let path = folder.0.join("index");
    for row_type in TYPES {
        let mut index = with_graph(row_type, COUNT, 12);
        let (old, new) = (clustered(1), clustered(2_000_000));
        index.add(Id::Integer(1), &packed(&new)).unwrap();
        assert!(searched(&index, &new, 20, 64)
            .iter()
            .any(|(id, _)| *id == Id::Integer(1)));
        assert!(searched(&index, &old, 1, 64)[0].0 != Id::Integer(1));
        for row in (0..COUNT).filter(|row| row % 3 != 1) {
            index.delete(&Id::Integer(row as i64)).unwrap();
        }
        assert!(recall(&index, 64) >= 0.95);
        index.save(&path, &cancel).unwrap();
        let mut opened = VectorIndex::open(&path, &cancel).unwrap();
        let left = COUNT / 3;
        assert_eq!((opened.len(), opened.graph()), (left + 1, Some((12, left))));
        // A small file is read, a large one mapped.
        let file = std::fs::metadata(&path).unwrap().len() as usize;
        assert!(opened.memory() < file + 100 * left);
        let share = recall(&opened, 64);
        assert!(share >= 0.95, "{row_type:?} {share}");
        for row in 0..COUNT {
            let id = Id::Integer((COUNT + row) as i64);
            opened.add(id, &packed(&clustered(COUNT + row))).unwrap();
        }
        build(&mut opened, 12);
        assert!(opened.graph().unwrap().1 > COUNT);
        let share = recall(&opened, 64);
        assert!(share >= 0.95, "{row_type:?} {share}");
        for row in 0..2 * COUNT {
            opened.delete(&Id::Integer(row as i64)).unwrap();
        }
        assert_eq!(searched(&opened, &new, 5, 64), []);
        opened.save(&path, &cancel).unwrap();
        assert!(VectorIndex::open(&path, &cancel).unwrap().is_empty());
    }
}

#[test]
fn some_rows_are_searched_with_a_graph_as_without() {
    let cancel = CancelToken::new();
    let index = with_graph(RowType::F32, COUNT, 12);
    for share in [2, 3, 500] {
        let some: Vec<Id> = (0..COUNT)
            .step_by(share)
            .map(|row| Id::Integer(row as i64))
            .collect();
        let rows = index.rows_of(&some);
        let mut hits = 0;
        for seed in 0..50 {
            let query = packed(&clustered(1_000_000 + seed));
            let exact = index.search(&query, 5, Some(&rows), None, &cancel).unwrap();
            let found = index
                .search(&query, 5, Some(&rows), Some(32), &cancel)
                .unwrap();
            assert!(found.iter().all(|(id, _)| some.contains(id)));
            hits += found.iter().filter(|hit| exact.contains(hit)).count();
        }
        assert!(hits >= 240, "{share} {hits}");
    }
}

#[test]
fn equal_vectors_and_an_interrupt_do_no_harm() {
    let cancel = CancelToken::new();
    let mut index = VectorIndex::new(WIDTH, RowType::F32).unwrap();
    for row in 0..COUNT {
        let vector = clustered(row.min(2000));
        index
            .add(Id::Integer(row as i64), &packed(&vector))
            .unwrap();
    }
    index.start_graph(12).unwrap();
    let stopped = CancelToken::new();
    stopped.cancel();
    assert!(matches!(
        index.build_graph(64, &stopped),
        Err(Error::Interrupted)
    ));
    assert_eq!(index.graph(), Some((12, 0)));
    let block = index.build_graph(64, &cancel).unwrap().unwrap();
    let late = index.build_graph(64, &cancel).unwrap().unwrap();
    index.grow_graph(block).unwrap();
    index.grow_graph(late).unwrap();
    assert_eq!(index.graph(), Some((12, 256)));
    build(&mut index, 12);
    let query = packed(&clustered(5));
    assert!(matches!(
        index.search(&query, 10, None, Some(64), &stopped),
        Err(Error::Interrupted)
    ));
    assert!(recall(&index, 64) >= 0.95);
    assert!(searched(&index, &clustered(2000), 10, 64)
        .iter()
        .all(|(_, score)| *score > 0.999));
    for links in [0, 1, 257] {
        assert!(matches!(
            index.start_graph(links),
            Err(Error::InvalidInput(_))
        ));
    }
}

/// A graph that lies under a checksum that holds is refused or searched, grown and repaired without harm.
#[test]
fn graphs_that_lie_do_no_harm() {
    let folder = Folder::new("lies");
    let cancel = CancelToken::new();
    let (path, again) = (folder.0.join("index"), folder.0.join("again"));
    with_graph(RowType::Binary, 600, 2)
        .save(&path, &cancel)
        .unwrap();
    let sound = fs::read(&path).unwrap();
    let after_rows = 64 + 600 * WIDTH.div_ceil(8);
    let graph = after_rows + 600 * (4 + 12);
    let (mut refused, mut taken) = (0, 0);
    for at in (graph..sound.len())
        .step_by(4)
        .filter(|at| at - graph < 100 || at % 240 == 0)
    {
        for lie in [0, 3, 511, 512, u32::MAX - 1, u32::MAX] {
            let mut bytes = sound.clone();
            bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(lie));
            if bytes == sound {
                continue;
            }
            fs::write(&path, &bytes).unwrap();
            let error = VectorIndex::open(&path, &cancel).err();
            assert!(matches!(error, Some(Error::CorruptModel(_))), "{error:?}");
            let mut hash = Sha256::new();
            hash.update(&bytes[..40]);
            hash.update(&bytes[after_rows..]);
            bytes[40..48].copy_from_slice(&hash.finalize()[..8]);
            fs::write(&path, &bytes).unwrap();
            let mut index = match VectorIndex::open(&path, &cancel) {
                Ok(index) => index,
                Err(Error::CorruptModel(_)) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{error:?}"),
            };
            taken += 1;
            searched(&index, &clustered(3), 5, 8);
            for row in 0..10 {
                index.delete(&Id::Integer(row)).unwrap();
            }
            for row in 0..300 {
                let id = Id::Integer(1000 + row as i64);
                index.add(id, &packed(&clustered(row))).unwrap();
            }
            build(&mut index, 2);
            index.save(&again, &cancel).unwrap();
            VectorIndex::open(&again, &cancel).unwrap();
        }
    }
    assert!(refused > 20 && taken > 20, "{refused} {taken}");
}

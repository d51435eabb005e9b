//! Indexes of vectors: every type of rows against plain sums, and files that lie.

use std::fs;
use std::path::PathBuf;

use engine::tasks::vector_index::{Id, RowType, VectorIndex};
use engine::{CancelToken, Error};

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
    index.search(&packed(query), most, None, &cancel).unwrap()
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
        let rows = index.rows_of(&some).unwrap();
        let cancel = CancelToken::new();
        let found = index
            .search(&packed(&query), 9, Some(&rows), &cancel)
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
            assert!(index.search(&bytes, 1, None, &cancel).is_err());
        }
        assert_eq!(index.len(), 3);
        let zeros = packed(&[0.0; 8]);
        index.add(Id::Integer(9), &zeros).unwrap();
        assert!(index.search(&zeros, 9, None, &cancel).unwrap().len() == 4);
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

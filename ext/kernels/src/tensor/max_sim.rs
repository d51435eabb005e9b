//! Late interaction: how well the vectors of a document's tokens answer those of a query's.

use candle_core::Tensor;

use super::nearest::{bytes_of, width_of};
use super::storage::read;
use crate::cpu::similarity;
use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// For each document the sum, over the query's vectors, of the greatest product with one of the
/// document's. All are f32 [tokens, dimension] on the CPU. A document without vectors gets 0.
pub fn max_sim(query: &Tensor, documents: &[Tensor], cancel: &CancelToken) -> Result<Vec<f32>> {
    let width = width_of(query)?;
    for (index, document) in documents.iter().enumerate() {
        let other = width_of(document)?;
        if other != width {
            return Err(Error::InvalidInput(format!(
                "the query's vectors have {width} components and those of the document at index {index} {other}: make \
                 both with the same model"
            )));
        }
    }
    read::<f32, _>(query, cancel, |query| {
        threads::map(documents, |_, document| {
            cancel.check()?;
            read::<f32, _>(document, cancel, |document| score(query, document, width))
        })
    })
}

fn score(query: &[f32], document: &[f32], width: usize) -> Result<f32> {
    if document.is_empty() {
        return Ok(0.0);
    }
    let mut products = vec![0f32; document.len() / width];
    let mut sum = 0.0;
    for wanted in query.chunks_exact(width) {
        similarity::dots(bytes_of(document), bytes_of(wanted), &mut products)?;
        sum += products.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn each_vector_of_the_query_takes_its_best() {
        let tensor = |rows: &[[f32; 2]]| {
            Tensor::from_slice(rows.as_flattened(), (rows.len(), 2), &Device::Cpu).unwrap()
        };
        let cancel = CancelToken::new();
        let query = tensor(&[[1.0, 0.0], [0.0, 2.0]]);
        let documents = [
            tensor(&[[0.5, 0.25], [-1.0, 1.0]]),
            Tensor::zeros((0, 2), DType::F32, &Device::Cpu).unwrap(),
        ];
        assert_eq!(max_sim(&query, &documents, &cancel).unwrap(), [2.5, 0.0]);
        let other = [Tensor::zeros((1, 3), DType::F32, &Device::Cpu).unwrap()];
        let error = max_sim(&query, &other, &cancel).unwrap_err().to_string();
        assert!(error.contains("index 0 3"), "{error}");
    }
}

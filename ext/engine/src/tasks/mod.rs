//! What models do: embed, rerank, classify, tag, fill masks.

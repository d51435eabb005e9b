# frozen_string_literal: true

module Candle
  # How vectors and texts get into an index.
  class Index
    # What a model may call the tasks of queries and documents.
    TASKS = { query: %w[query retrieval.query], document: %w[document retrieval.passage] }.freeze
    # One vector, text or image on its way into the index.
    Item = Struct.new(:key, :id, :text, :metadata, :part, :vector, :weights, :matrix, :image)
    private_constant :TASKS, :Item

    private

    # Of several with one id the last counts, as if they were added one by one.
    def add_items(given)
      given = given.map { |id, item, metadata| [key(id), item, metadata] }.reverse.uniq(&:first).reverse
      items = given.flat_map { |id, item, metadata| prepared(id, item, described(metadata)) }
      items = unknown(items) if @settings.deduplicate
      embed(items)
      @monitor.synchronize { items.group_by(&:id).each_value { |group| put(group) } }
    end

    def prepared(id, item, metadata)
      return [of_tokens(id, item, metadata)] if token_dimension && !text_like?(item)
      return [Item.new(id, id, nil, metadata, nil, packed(item))] unless textual?(item)

      text = TextInput.utf8(item, "text")
      return [Item.new(id, id, text, metadata)] unless @settings.splitter

      chunks(id, text, metadata)
    end

    # @return [Integer, nil] the size of a token's vector, where texts and images have one for each token
    def token_dimension
      @token_dimension || @settings.late_model&.dimension
    end

    # Bytes of an image file are a String too.
    def text_like?(item)
      String === item && text?(item)
    end

    # What has a vector for each token: those, or the image to make them of.
    def of_tokens(id, item, metadata)
      return Item.new(id, id, nil, metadata).tap { |one| one.matrix = tokens_of(item) } if Tensor === item
      return Item.new(id, id, nil, metadata).tap { |one| one.image = item } if @settings.late_model && Image.like?(item)

      raise InvalidInputError, "an index with vectors of tokens takes texts, images and Tensors of shape [tokens, " \
                               "#{token_dimension}], not #{Arguments.shown(item)}"
    end

    # The Tensor as it is kept: on the CPU, as f32.
    def tokens_of(tensor)
      count, size = tensor.shape
      unless tensor.rank == 2 && size == token_dimension && count.positive?
        raise InvalidInputError, "vectors of tokens must be a Tensor of shape [tokens, #{token_dimension}], not of " \
                                 "shape #{tensor.shape}"
      end

      kept = tensor.to_device("cpu").to_dtype(:f32)
      return kept if (kept * 0.0).abs.sum.to_f.zero?

      raise InvalidInputError, "vectors of tokens must be finite numbers"
    end

    # A String is a text where the index takes texts, unless it can only be a packed vector.
    def textual?(item)
      return false unless String === item && text?(item)
      return true if @textual || @settings.models?

      raise InvalidInputError, text_given(item)
    end

    # Texts and chunks that no other id has.
    def unknown(items)
      @monitor.synchronize do
        items.reject { |item| item.text && @documents&.elsewhere?(item.text, item.id) }
             .uniq { |item| item.text || item.object_id }
      end
    end

    def chunks(id, text, metadata)
      parts = @settings.splitter.split(text)
      return [Item.new(id, id, text, metadata)] if parts.size < 2

      vectors = @settings.late_chunking ? late_vectors(text, parts) : []
      parts.each_with_index.map do |part, number|
        Item.new(IndexDocuments.key(id, number), id, part.text, metadata, number, vectors[number])
      end
    end

    # The mean of the states of each part's tokens, all of which have seen the whole text. nil for a part without any.
    def late_vectors(text, parts)
      check_length(text)
      rows = @settings.model.embeddings(text).to_a.first
      offsets = @settings.model.tokenizer.encode_with_offsets(text)[:offsets]
      parts.map do |part|
        own = rows.each_index.select do |at|
          first, last = offsets[at]
          first < last && first >= part.start && last <= part.end
        end
        mean(rows, own)&.pack("e*")
      end
    end

    # States of a text that is cut would be missing.
    def check_length(text)
      most = @settings.model.max_length or return
      count = @settings.model.count_tokens(text)
      return if count <= most

      raise InvalidInputError, "late_chunking: the text has #{count} tokens, and the model reads #{most} at once: " \
                               "add it in parts, or use an index without late_chunking"
    end

    def mean(rows, own)
      return if own.empty?

      sums = own.map { |at| rows[at] }.transpose.map(&:sum)
      length = Math.sqrt(sums.sum { |value| value * value })
      length.zero? ? sums : sums.map { |value| value / length }
    end

    def embed(items)
      embed_images(items.select(&:image))
      texts = items.select(&:text)
      embed_dense(texts.reject(&:vector)) if @settings.model
      embed_sparse(texts) if @settings.sparse_model
      embed_late(texts) if @settings.late_model
    end

    def embed_images(items)
      return if items.empty?

      found = @settings.late_model.embed_image(items.map(&:image))
      items.zip(found) { |item, matrix| item.matrix = matrix }
    end

    def embed_late(items)
      items.zip(@settings.late_model.embed_document(items.map(&:text))) { |item, matrix| item.matrix = matrix }
    end

    def embed_dense(items)
      vectors = @settings.model.embed(items.map(&:text), as: :packed, **reading(:document))
      items.zip(vectors) { |item, vector| item.vector = vector }
    end

    def embed_sparse(items)
      found = @settings.sparse_model.embed_document(items.map(&:text))
      items.zip(found) { |item, weights| item.weights = weights.to_a }
    end

    # Queries and documents by the model's adapter, route or prompt for them.
    def reading(role)
      known = @settings.model.tasks
      known.empty? || known.intersect?(TASKS.fetch(role)) ? { task: role } : {}
    end

    # All that has one id, in place of what had it before. What can't be stored leaves that as it is.
    def put(items)
      store(items.select(&:vector))
      items.each { |item| encode(item) }
      replaced(items).each { |key| drop(key) }
      items.each do |item|
        document(item)
        note(addition(item))
      end
      settle
    end

    # The keys of what had the id before, but for those that have got other vectors.
    def replaced(items)
      id = items.first.id
      before = @documents ? @documents.keys(id) : []
      before = [id] if before.empty? && !@textual
      before - items.select { |item| item.vector || item.matrix }.map(&:key)
    end

    def store(items)
      _add(items.map(&:key), items.map(&:vector)) if items.any?
    end

    # The vector of fixed size of a text's tokens, by which it is found.
    def encode(item)
      return unless @pruning && item.matrix

      _add([item.key], [_fixed(item.matrix.to_dtype(:f32).to_packed, false)])
    end

    def addition(item)
      ["add", *item.to_a.values_at(0, 1, 2, 3, 4, 6), item.vector || item.matrix&.to_packed]
    end

    def document(item)
      @documents&.remove(item.key)
      return if item.text.nil? && item.metadata.nil? && item.matrix.nil?

      @documents ||= IndexDocuments.new(@settings.bm25)
      @documents.add(IndexDocuments::Entry.new(*item.to_a.values_at(0, 1, 2, 3, 4, 6, 7)))
    end

    # @return [Boolean] whether there was something of that id
    def remove(id)
      keys = @documents ? @documents.keys(id) : []
      keys = [id] if keys.empty?
      found = keys.map { |key| drop(key) }.any?
      settle
      found
    end

    def drop(key)
      entry = @documents&.remove(key)
      found = _delete(key) || !entry.nil?
      note(["delete", key]) if found
      found
    end

    # @return [Hash, nil] metadata as the file will hold it, nil where there is none
    def described(metadata)
      return if NilClass === metadata
      raise ArgumentError, "metadata must be a Hash, not #{Arguments.shown(metadata)}" unless Hash === metadata
      return if metadata.empty?

      JSON.parse(Arguments.json(metadata, "metadata"), symbolize_names: true).freeze
    end
  end
end

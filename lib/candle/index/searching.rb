# frozen_string_literal: true

module Candle
  # How an index is searched.
  class Index
    # What finds documents: vectors, words, sparse vectors, or all that the index has.
    MODES = %i[dense bm25 sparse hybrid].freeze
    # How the lists of several modes become one.
    FUSIONS = %i[rrf weighted].freeze
    # How many of each list are joined, and reranked, at least.
    DEPTH = 50
    # The constant of reciprocal rank fusion.
    RANK = 60.0
    # How many texts are compared by MaxSim for each one that is wanted, and at least, where the index prunes.
    TIMES = 8
    LEAST = 100
    private_constant :DEPTH, :RANK, :TIMES, :LEAST

    # What a search looks for: how much, where, and how.
    Query = Struct.new(:item, :most, :among, :ef, :passes, :candidates)
    private_constant :Query

    # The vectors with the greatest cosine, or the texts that fit a query best. With rows of bytes the cosine is that of
    # what they hold, and with bits the share of components whose signs agree, from -1 to 1.
    #
    # All vectors are compared, unless there is a graph ({#build_graph}): then it is searched if that compares fewer,
    # which is not so if `among` leaves few or nearly all are wanted.
    #
    # @example
    #   index = Candle::Index.new(dimension: 2)
    #   index.add_all(1 => [0.0, 1.0], 2 => [1.0, 0.0], 3 => [0.7, 0.7])
    #   index.search([1.0, 0.1], top_k: 2).map { |found| found[:id] } # => [2, 3]
    #   index.search([1.0, 0.1], among: [1, 3]).map { |found| found[:id] } # => [3, 1]
    # @example
    #   index = Candle::Index.new
    #   index.add("a", "the quick brown fox", year: 2020).add("b", "a fox and a dog", year: 2024)
    #   index.search("brown fox").map { |hit| hit[:id] } # => ["a", "b"]
    #   index.search("fox", where: { year: 2021.. }).map { |hit| hit[:text] } # => ["a fox and a dog"]
    #
    # @param query [Array<Numeric>, String, Tensor] a vector, or a text where the index takes texts
    # @param top_k [Integer, nil] how many to return; nil is all
    # @param mode [Symbol, nil] one of {MODES}; nil is `:dense` where there is a model, `:sparse` where there is only a
    #   sparse one, and else `:bm25`
    # @param fusion [Symbol] one of {FUSIONS}, for `:hybrid`: reciprocal ranks, or scores from 0 to 1 in each list
    # @param weights [Hash] how much each mode counts in `:hybrid`; 1 where it is not named
    # @param where [Hash] conditions on metadata by name: a value, an Array of values, a Range, a Regexp or a Proc
    # @param rerank [#rerank, nil] such as a {Reranker}, which sorts the best texts once more; scores are its own
    # @param among [Enumerable<Integer, String>, nil] the ids to search in; nil is all. Faster than a block where most
    #   are left out
    # @param ef [Integer, nil] `ef_search`: how many candidates the search of a graph keeps, at least `top_k`; nil is
    #   64. More find more, and take longer
    # @param effort [Integer, nil] the same as `ef:`
    # @param exact [Boolean] whether to compare all vectors in any case, and all texts by MaxSim
    # @param candidates [Integer, nil] how many of the nearest by bits are compared once more by finer rows, and how
    #   many texts by MaxSim where the index has `pruning`; nil is 8 times `top_k`, at least 100
    # @yieldparam id [Integer, String] an id that might be returned, best first
    # @yieldreturn [Boolean] whether to return it
    # @return [Array<Hash>] `{id:, score:}`, best first; with `text:` and `metadata:`, where the index holds any, and
    #   `chunk:`, where a text was cut
    # @raise [InvalidInputError] for a vector of another size or with what isn't a finite number, and for a mode that
    #   the index has nothing for
    def search(query, top_k: 10, mode: nil, fusion: :rrf, weights: {}, where: {}, rerank: nil, among: nil, ef: nil,
               effort: nil, exact: false, candidates: nil, &filter)
      most = Arguments.count(top_k, "top_k") || size
      ef = ef_of(ef, effort) || EF_SEARCH
      mode = chosen(mode, query)
      candidates = Arguments.count(candidates, "candidates")
      candidates = size if exact
      wanted = Query.new(query, depth(most, mode, rerank), conditions(where, among), exact ? nil : ef, filter,
                         candidates)
      found = mode == :hybrid ? fused(wanted, fusion, weights) : by_mode(mode, wanted)
      found = reranked(rerank, query, found) if rerank
      found.first(most).map { |key, score| hit(key, score) }
    end

    private

    def chosen(mode, query)
      return Arguments.choice(mode, "mode", MODES) unless NilClass === mode
      return :dense unless String === query && text?(query) && (@textual || @settings.models?)
      return :dense if @settings.model || @settings.late_model

      @settings.sparse_model ? :sparse : :bm25
    end

    def depth(most, mode, rerank)
      mode == :hybrid || rerank ? [most * SLACK, DEPTH].max : most
    end

    # @return [Array<Integer, String>, nil] the keys to search in
    def conditions(where, among)
      raise ArgumentError, "where must be a Hash, not #{Arguments.shown(where)}" unless Hash === where

      allowed = ids(among)
      return allowed if where.empty?

      names = where.transform_keys { |name| Arguments.label(name, "where").to_sym }
      matching = @documents ? @monitor.synchronize { @documents.keys_where(names) } : []
      allowed ? matching & allowed : matching
    end

    # @return [Array<Integer, String>, nil] the keys of ids
    def ids(among)
      case among
      when nil then nil
      when Enumerable then among.flat_map { |id| keys(key(id)) }
      else raise ArgumentError, "among must be an Enumerable of ids, not #{Arguments.shown(among)}"
      end
    end

    def keys(id)
      found = @documents ? @monitor.synchronize { @documents.keys(id) } : []
      found.empty? ? [id] : found
    end

    # @return [Array<Array(Object, Float)>] keys and scores, best first
    def by_mode(mode, query)
      case mode
      when :dense then dense(query)
      when :bm25 then listed(query, "texts") { |most| @documents.by_terms(text_of(query), most, query.among) }
      else
        model = @settings.sparse_model or raise InvalidInputError, "this index has no sparse vectors: give it a " \
                                                                   "sparse_model"
        weights = model.embed_query(text_of(query)).to_a
        listed(query, "texts") { |most| @documents.by_weights(weights, most, query.among) }
      end
    end

    def dense(query)
      return by_tokens(query) if @settings.late_model

      raise InvalidInputError, "this index has no vectors: give it a model, or search with mode: :bm25" if @textual

      vector = packed(embedded(query.item))
      return _search(vector, query.most, query.among, query.ef, query.candidates) unless query.passes

      filtered(vector, query)
    end

    # MaxSim over all texts, or over those whose vectors of fixed size are nearest.
    def by_tokens(query)
      tokens = Tensor === query.item ? query.item : @settings.late_model.embed_query(text_of(query))
      keys = pruned_keys(query, tokens)
      found = @monitor.synchronize { @documents.matrices(keys) }
      scores = @settings.late_model.score(tokens, found.map(&:last))
      ranked = found.map(&:first).zip(scores).sort_by.with_index { |(_, score), at| [-score, at] }.lazy
      ranked = ranked.select { |key, _| query.passes.call(id_of(key)) } if query.passes
      ranked.first(query.most)
    end

    # @return [Array<Integer, String>, nil] the texts that MaxSim compares; nil is all
    def pruned_keys(query, tokens)
      return query.among unless @pruning && query.ef && !query.passes

      candidates = [query.candidates || [query.most * TIMES, LEAST].max, query.most].max
      wanted = _fixed(tokens.to_dtype(:f32).to_packed, true)
      _search(wanted, candidates, query.among, [query.ef, candidates].max, nil).map(&:first)
    end

    def embedded(item)
      return item unless String === item && text?(item) && @settings.model

      @settings.model.embed(item, as: :packed, **reading(:query))
    end

    def text_of(query)
      return TextInput.utf8(query.item, "query") if TextInput.text?(query.item)

      raise InvalidInputError, "BM25 needs a text, not a vector: use mode: :dense"
    end

    # What a block lets pass of all that is found; a search by words sorts everything anyway.
    def listed(query, what)
      unless @documents
        raise InvalidInputError,
              "this index has no #{what}: create it with a model, or without dimension"
      end

      @monitor.synchronize do
        found = yield(query.passes ? @documents.size : query.most)
        next found unless query.passes

        found.lazy.select { |key, _| query.passes.call(id_of(key)) }.first(query.most)
      end
    end

    # Asks for more until enough of them pass, so that the block sees few of a million. A longer search may find better
    # ones than a shorter one did.
    def filtered(vector, query)
      answers = {}
      wanted = query.most
      total = size
      loop do
        wanted = [wanted * SLACK, total].min
        found = _search(vector, wanted, query.among, query.ef, query.candidates)
        passed = found.lazy.select do |key, _|
          answers.fetch(key) { answers[key] = query.passes.call(id_of(key)) }
        end.first(query.most)
        return passed if passed.size == query.most || found.size < wanted || wanted == total
      end
    end

    # The lists of all that the index has, as one.
    def fused(query, fusion, weights)
      fusion = Arguments.choice(fusion, "fusion", FUSIONS)
      weights = checked(weights)
      modes = [(:dense if @settings.model || @settings.late_model), :bm25, (:sparse if @settings.sparse_model)].compact
      sums = Hash.new(0.0)
      modes.each do |mode|
        weight = weights.fetch(mode, 1.0)
        shares(by_mode(mode, query), fusion).each { |key, share| sums[key] += weight * share }
      end
      sums.sort_by.with_index { |(_, score), at| [-score, at] }
    end

    def checked(weights)
      raise ArgumentError, "weights must be a Hash, not #{Arguments.shown(weights)}" unless Hash === weights

      weights.to_h do |mode, weight|
        [Arguments.choice(mode, "weights", MODES), Arguments.float(weight, "weights")]
      end
    end

    def shares(found, fusion)
      return found.each_with_index.map { |(key, _), rank| [key, 1.0 / (RANK + rank + 1)] } if fusion == :rrf

      least, most = found.map(&:last).minmax
      spread = least == most ? 1.0 : (most - least).to_f
      found.map { |key, score| [key, least == most ? 1.0 : (score - least) / spread] }
    end

    def reranked(model, query, found)
      unless Arguments.answers?(model, :rerank)
        raise ArgumentError, "rerank must be a Reranker or something like it, not #{Arguments.shown(model)}"
      end

      texts = @monitor.synchronize { found.map { |key, _| @documents && @documents[key]&.text } }
      raise InvalidInputError, "rerank: needs texts, and this index has vectors only" if texts.any?(&:nil?)
      return [] if texts.empty?

      model.rerank(TextInput.utf8(query, "query"), texts).map { |hit| [found[hit[:doc_id]].first, hit[:score]] }
    end

    def id_of(key)
      entry = @documents && @documents[key]
      entry ? entry.id : key
    end

    def hit(key, score)
      return { id: key, score: score } unless @documents

      entry = @monitor.synchronize { @documents[key] }
      return { id: key, score: score, text: nil, metadata: {} } unless entry

      found = { id: entry.id, score: score, text: entry.text, metadata: entry.metadata || {} }
      entry.part ? found.merge(chunk: entry.part) : found
    end
  end
end

# frozen_string_literal: true

require "candle/text/text_splitter/formats"

module Candle
  # Cuts texts into chunks for a model: where a section, a paragraph, a sentence or at least a word ends, counted in the
  # model's own tokens.
  #
  # @example
  #   splitter = Candle::TextSplitter.new(size: 24)
  #   splitter.split("One sentence. Another one. A third.").map(&:text)
  #   # => ["One sentence. ", "Another one. A third."]
  # @example
  #   model = Candle::EmbeddingModel.from_pretrained("spec/fixtures/tiny/bert-sentence")
  #   chunks = Candle::TextSplitter.new(model, size: 8, overlap: 2).split("the quick fox. the lazy dog. hello world.")
  #   chunks.map(&:tokens).max <= 8 # => true
  class TextSplitter
    # A part of a text: `text == whole[start...end]`, in characters; `tokens` is its size.
    Chunk = Struct.new(:text, :start, :end, :tokens, keyword_init: true)

    # What texts may be written in.
    FORMATS = Formats::LEVELS.keys.freeze

    # How many characters are read from a stream before they are cut.
    BLOCK = 1 << 20
    # How many pieces are counted at once.
    BATCH = 4096
    # A text of more characters per token than this is cut before anything is counted.
    LONGEST_TOKEN = 8
    private_constant :BLOCK, :BATCH, :LONGEST_TOKEN

    # A piece that is not cut further, the level of the boundary before it, and its size.
    Piece = Struct.new(:text, :level, :tokens)
    private_constant :Piece

    # @return [Integer] the most tokens (or characters) of a chunk
    attr_reader :size
    # @return [Integer] how many of them a chunk repeats of the one before it, at most
    attr_reader :overlap
    # @return [Symbol] one of {FORMATS}
    attr_reader :format

    # @param counter [Tokenizer, Model, String, nil] whose tokens count: a tokenizer, a model, or where to load a
    #   tokenizer from; nil counts characters
    # @param size [Integer, nil] the most tokens of a chunk, special ones not counted; nil is what the model takes
    # @param overlap [Integer] how many tokens of a chunk's end the next one begins with, at most: whole sentences or
    #   words are repeated
    # @param format [Symbol] `:text`, `:sentences`, `:markdown` or `:code`
    # @raise [ArgumentError] for sizes that are impossible
    def initialize(counter = nil, size: nil, overlap: 0, format: :text)
      @tokenizer = tokenizer_of(counter)
      @size = Arguments.count(size, "size") || size_of(counter)
      @overlap = overlap
      @format = Arguments.choice(format, "format", FORMATS)
      return if overlap.is_a?(Integer) && overlap >= 0 && overlap < @size

      raise ArgumentError,
            "overlap must be an Integer from 0 to less than size (#{@size}), not #{Arguments.shown(overlap)}"
    end

    # @param text [String]
    # @return [Array<Chunk>] in order; without overlap they add up to the text
    # @raise [InvalidInputError] for what isn't a text
    def split(text)
      chunks(TextInput.utf8(text), 0)
    end

    # Like {#split}, for a text that is too long to hold: it is read block by block.
    #
    # @example
    #   require "stringio"
    #   io = StringIO.new("one two three " * 100)
    #   Candle::TextSplitter.new(size: 50).each_chunk(io).first.text.size <= 50 # => true
    #
    # @param source [IO, Enumerable<String>, String] what answers `read`, or parts of a text
    # @yieldparam chunk [Chunk]
    # @return [self, Enumerator] an Enumerator without a block
    def each_chunk(source, &block)
      return enum_for(:each_chunk, source) unless block

      rest = +""
      start = 0
      blocks(source) do |part|
        rest << part
        next if rest.length < BLOCK

        *whole, last = chunks(rest, start)
        whole.each(&block)
        # The last chunk may go on, and the next may begin before its end.
        rest = +rest[(last.start - start)..]
        start = last.start
      end
      chunks(rest, start).each(&block)
      self
    end

    # @return [String] one line
    def inspect
      "#<Candle::TextSplitter #{format} #{size} #{@tokenizer ? "tokens" : "characters"}, overlap #{overlap}>"
    end

    private

    def tokenizer_of(counter)
      case counter
      when nil, Tokenizer then counter
      when String then Tokenizer.from_pretrained(counter)
      else
        Arguments.answers?(counter, :tokenizer) ? counter.tokenizer : raise(ArgumentError, counter_message(counter))
      end
    end

    def counter_message(counter)
      "TextSplitter counts with a Tokenizer, a model, or the path or id of one, not with #{Arguments.shown(counter)}"
    end

    # What a model takes, less what it adds itself.
    def size_of(counter)
      length = counter.max_length if counter.respond_to?(:max_length)
      raise ArgumentError, "size is required without a model" unless length

      length - @tokenizer.encode("").size
    end

    def sizes(texts)
      return texts.map(&:length) unless @tokenizer

      texts.each_slice(BATCH).flat_map { |part| @tokenizer.encode_batch(part, add_special_tokens: false).map(&:size) }
    end

    # @return [Array<Chunk>]
    def chunks(text, start)
      return [] if text.empty?

      groups = packed(pieces(text))
      measured_groups(groups).map do |part, repeated, count|
        start -= repeated
        chunk = Chunk.new(text: part, start: start, end: start + part.length, tokens: count)
        start = chunk.end
        chunk
      end
    end

    # The text of each group, how much it repeats, and its size as a whole. The sizes of pieces do not always add up: a
    # group that is too large by that is cut in two.
    def measured_groups(groups)
      texts = groups.map { |group, _| group.map(&:text).join }
      groups.zip(texts, sizes(texts)).flat_map do |(group, repeated), text, count|
        next [[text, repeated, count]] if count <= size || group.size == 1

        middle = group.size / 2
        measured_groups([[group.take(middle), repeated], [group.drop(middle), 0]])
      end
    end

    # Pieces that fit, cut at the level that is needed and no deeper.
    def pieces(text)
      found = [Piece.new(text, 0, nil)]
      Formats::LEVELS.fetch(format).each_with_index do |cut, level|
        measured(found)
        found = found.flat_map { |piece| piece.tokens <= size ? [piece] : finer(piece, cut, level) }
      end
      measured(found)
    end

    def finer(piece, cut, level)
      Formats.public_send(cut, piece.text).each_with_index.map do |text, index|
        Piece.new(text, index.zero? ? piece.level : level, nil)
      end
    end

    def measured(pieces)
      unknown = pieces.select { |piece| piece.tokens.nil? }
      large, unknown = unknown.partition { |piece| piece.text.length > LONGEST_TOKEN * size }
      large.each { |piece| piece.tokens = Float::INFINITY }
      unknown.zip(sizes(unknown.map(&:text))) { |piece, count| piece.tokens = count }
      pieces
    end

    # Groups of neighbouring pieces that fit together, each with how many characters of the group before it it repeats.
    def packed(pieces)
      groups = []
      first = 0
      repeated = 0
      while first < pieces.size
        last = fitting(pieces, first)
        groups << [pieces[first...last], repeated]
        break if last >= pieces.size

        first = overlapping(pieces, first, last)
        repeated = pieces[first...last].sum { |piece| piece.text.length }
      end
      groups
    end

    # Where the group that begins with `first` ends: as far as it fits, but rather at the end of a section or paragraph
    # in its latter half than in the middle of one.
    def fitting(pieces, first)
      last = first + 1
      total = pieces[first].tokens
      while last < pieces.size && total + pieces[last].tokens <= size
        total += pieces[last].tokens
        last += 1
      end
      last < pieces.size ? better(pieces, first, last) : last
    end

    def better(pieces, first, last)
      middle = first + ((last - first) / 2)
      candidates = ([middle, first + 1].max..last).to_a
      candidates.min_by { |index| [pieces[index].level, -index] }
    end

    # Where the next group begins, so that it repeats at most `overlap`, and goes on from the one before.
    def overlapping(pieces, first, last)
      return last if overlap.zero?

      again = last
      total = 0
      while again > first + 1 && total + pieces[again - 1].tokens <= overlap
        again -= 1
        total += pieces[again].tokens
      end
      again
    end

    def blocks(source)
      if TextInput.text?(source) then yield TextInput.utf8(source)
      elsif Object === source && source.respond_to?(:read)
        yield TextInput.utf8(whole_characters(source), "the text") until source.eof?
      elsif Enumerable === source
        source.each_with_index { |part, index| yield TextInput.utf8(part, "texts[#{index}]") }
      else
        raise InvalidInputError, "a text is a String, an IO or an Enumerable of Strings, not #{Arguments.shown(source)}"
      end
    end

    # A block of a stream, with the rest of a character that its end cuts through.
    def whole_characters(source)
      block = source.read(BLOCK).force_encoding(Encoding::UTF_8)
      3.times do
        break if block.valid_encoding? || source.eof?

        block << source.read(1).force_encoding(Encoding::UTF_8)
      end
      block
    end
  end
end

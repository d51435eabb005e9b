# frozen_string_literal: true

module Candle
  # What the modules of a model read while it reads a text: sums of their squared inputs, column by column.
  #
  # @api private
  class ModuleInputs
    # Tokens that are read at a time.
    CONTEXT = 512
    # Parts of the text that one native call reads.
    PARTS = 8
    private_constant :PARTS

    attr_reader :context, :text_name, :chunks

    # @param directory [String] a checkpoint
    # @param file [String, Pathname] with a text
    # @return [ModuleInputs]
    # @raise [InvalidInputError] when the text is shorter than two tokens
    def self.of(directory, file, context: CONTEXT, device: nil, progress: false)
      path = TextInput.path(file, "text")
      raise ModelNotFoundError, "#{path}: no such file" unless File.file?(path)

      llm = LLM.from_pretrained(directory, device: device)
      new(llm, File.read(path, encoding: "UTF-8"), context, File.basename(path), Progress.for(progress))
    ensure
      llm&.close
    end

    def initialize(llm, text, context, name, progress = nil)
      @context = [Arguments.count(context, "context") || CONTEXT, llm.context_length].min
      @text_name = name
      @sums = {}
      parts = parts(llm, TextInput.utf8(text, "text"))
      @chunks = parts.size
      parts.each_slice(PARTS).with_index do |some, number|
        llm.module_inputs(some).each { |names, sums, rows| add(names, sums, rows) }
        progress&.call([(number + 1) * PARTS, @chunks].min, @chunks)
      end
    end

    # @param tensor [String] a weight
    # @return [Array(Array<Float>, Integer), nil] the sums of its inputs, and how many there were
    def of(tensor)
      @sums[tensor.delete_suffix(".weight")]
    end

    private

    # Each begins as a text does.
    def parts(llm, text)
      ids = llm.tokenizer.encode(text)
      raise InvalidInputError, "the text has less than two tokens: nothing can be measured" if ids.size < 2

      bare = llm.tokenizer.encode("x", add_special_tokens: false)
      start = llm.tokenizer.encode("x") == bare ? [] : ids.take(1)
      rest = ids.drop(start.size)
      room = [@context - start.size, 1].max
      full = rest.each_slice(room).map { |part| start + part }
      full.size > 1 && full.last.size < @context / 2 ? full[0..-2] : full
    end

    def add(names, packed, rows)
      sums = packed.unpack("E*")
      before, count = @sums[names.first]
      sums = sums.zip(before).map(&:sum) if before
      names.each { |name| @sums[name] = [sums, rows + count.to_i] }
    end
  end
end

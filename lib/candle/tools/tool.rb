# frozen_string_literal: true

module Candle
  # Something a model may call.
  #
  # @example
  #   weather = Candle::Tool.new(
  #     name: "weather", description: "The weather in a city",
  #     parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] }
  #   ) { |arguments| "sunny in #{arguments["city"]}" }
  #   weather.call("city" => "Paris") # => "sunny in Paris"
  class Tool
    # @return [String]
    attr_reader :name
    # @return [String] what it is good for, for the model
    attr_reader :description
    # @return [Hash] a JSON schema of the arguments; an empty one takes any
    attr_reader :parameters

    # @param tools [Array<Tool, Hash>]
    # @return [Array<Hash>] their definitions, as chat templates take them
    def self.definitions(tools)
      tools.map { |tool| tool.respond_to?(:to_tool_definition) ? tool.to_tool_definition : tool }
    end

    # @param name [String]
    # @param description [String]
    # @param parameters [Hash]
    # @yieldparam arguments [Hash] what the model passes, with String keys; Symbols find them too
    # @yieldreturn [Object] the result: a String, or what can be written as JSON
    def initialize(name:, description:, parameters: {}, &block)
      raise ArgumentError, "a tool needs a name" if name.to_s.empty?

      unless parameters.is_a?(Hash)
        raise ArgumentError,
              "parameters must be a Hash (JSON schema), not #{parameters.inspect}"
      end

      @name = name.to_s
      @description = description
      @parameters = parameters
      @work = block
    end

    # @param arguments [Hash]
    # @return [Object] what the block returns
    # @raise [InvalidInputError] when the tool was made without a block
    def call(arguments = {})
      raise InvalidInputError, "the tool #{name} has no block to call" unless @work

      @work.call(arguments)
    end

    # The same with arguments that come from a model: they are checked first.
    #
    # @param arguments [Hash] with String keys
    # @return [Object]
    # @raise [InvalidInputError] when the parameters do not allow them
    def execute(arguments)
      problems = problems_of(arguments)
      raise InvalidInputError, "invalid arguments for #{name}: #{problems.join("; ")}" if problems.any?

      call(either_key(arguments))
    end

    # @return [Hash] the definition in the form of OpenAI's functions
    def to_tool_definition
      { "type" => "function", "function" => { "name" => name, "description" => description,
                                              "parameters" => parameters } }
    end

    alias to_h to_tool_definition

    # @return [String] one line
    def inspect
      "#<Candle::Tool #{name}(#{(parameters[:properties] || parameters["properties"] || {}).keys.join(", ")})>"
    end

    private

    def problems_of(arguments)
      return ["arguments must be an object, not #{arguments.inspect}"] unless arguments.is_a?(Hash)

      JsonSchema.new(parameters).errors(arguments)
    end

    def either_key(arguments)
      found = arguments.dup
      found.default_proc = ->(hash, key) { key.is_a?(Symbol) ? hash.fetch(key.to_s, nil) : nil }
      found
    end
  end
end

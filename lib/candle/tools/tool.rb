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

    # What a name may be: models and chat templates quote it as it is.
    NAME = /\A[a-zA-Z0-9_.-]{1,64}\z/

    class << self
      # @param tools [Array<Tool, Hash>]
      # @return [Array<Hash>] their definitions, as chat templates take them
      # @raise [ArgumentError] for what isn't a tool, naming its index
      def definitions(tools)
        all(tools).map(&:to_tool_definition)
      end

      # @param tools [Array<Tool, Hash>] tools, or definitions in the form of OpenAI's functions
      # @return [Array<Tool>]
      # @raise [ArgumentError] for what isn't a tool, naming its index, and for two tools of one name
      def all(tools)
        unless Array === tools
          raise ArgumentError, "tools must be an Array of Candle::Tool, not #{Arguments.shown(tools)}"
        end

        found = tools.each_with_index.map { |tool, index| executable?(tool) ? tool : defined(tool, index) }
        twice = found.map(&:name).tally.find { |_, count| count > 1 }
        raise ArgumentError, "two tools are named #{twice.first.inspect}; names must differ" if twice

        found
      end

      private

      def executable?(tool)
        Object === tool && tool.respond_to?(:execute)
      end

      def defined(definition, index)
        function = Hash.try_convert(definition)&.transform_keys(&:to_sym) if Object === definition
        function = function[:function].transform_keys(&:to_sym) if function && function[:function].is_a?(Hash)
        unless function && function[:name]
          raise ArgumentError, "tools[#{index}] must be a Candle::Tool or a Hash that defines a function, not " \
                               "#{Arguments.shown(definition)}"
        end

        new(name: function[:name], description: function[:description].to_s, parameters: function[:parameters] || {})
      end
    end

    # @param name [String] letters, digits, `_`, `-` and `.`, 64 at most
    # @param description [String]
    # @param parameters [Hash]
    # @yieldparam arguments [Hash] what the model passes, with String keys; Symbols find them too
    # @yieldreturn [Object] the result: a String, or what can be written as JSON
    def initialize(name:, description:, parameters: {}, &block)
      unless NAME.match?(name.to_s)
        raise ArgumentError,
              "a tool's name must be made of letters, digits, _, - and . (64 at most), not #{Arguments.shown(name)}"
      end

      unless parameters.is_a?(Hash)
        raise ArgumentError,
              "parameters must be a Hash (JSON schema), not #{Arguments.shown(parameters)}"
      end

      @name = name.to_s
      @description = description
      @parameters = parameters
      @work = block
    end

    # @return [Boolean] whether it has a block; one without only describes itself to the model
    def callable?
      !@work.nil?
    end

    # @param arguments [Hash]
    # @return [Object] what the block returns
    # @raise [InvalidInputError] when the tool was made without a block
    def call(arguments = {})
      raise InvalidInputError, "the tool #{name} has no block to call: give Tool.new one" unless @work

      @work.call(arguments)
    end

    # Calls the tool with arguments that come from a model: they are checked first.
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
      return ["arguments must be an object, not #{Arguments.shown(arguments)}"] unless arguments.is_a?(Hash)

      JsonSchema.new(parameters).errors(arguments)
    end

    def either_key(arguments)
      found = arguments.dup
      found.default_proc = ->(hash, key) { key.is_a?(Symbol) ? hash.fetch(key.to_s, nil) : nil }
      found
    end
  end
end

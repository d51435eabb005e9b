# frozen_string_literal: true

module Candle
  # A Hash in which a String and a Symbol of the same name find the same value. It keeps its keys as they were given.
  #
  # @api private
  class EitherKeys < Hash
    alias stored? key?
    private :stored?

    # @param hash [Hash]
    # @return [EitherKeys] a frozen copy
    def self.of(hash)
      new.replace(hash).freeze
    end

    # @param key [String, Symbol]
    # @return [Object, nil]
    def [](key)
      super(stored(key))
    end

    # @param key [String, Symbol]
    # @return [Object]
    def fetch(key, *default, &block)
      super(stored(key), *default, &block)
    end

    # @param key [String, Symbol]
    # @return [Boolean]
    def key?(key)
      stored?(stored(key))
    end

    alias has_key? key?
    alias include? key?
    alias member? key?

    # @param key [String, Symbol]
    # @return [Object, nil]
    def dig(key, *rest)
      super(stored(key), *rest)
    end

    # @param keys [Array<String, Symbol>]
    # @return [Array]
    def values_at(*keys)
      super(*keys.map { |key| stored(key) })
    end

    # @param keys [Array<String, Symbol>]
    # @return [Hash]
    def slice(*keys)
      super(*keys.map { |key| stored(key) })
    end

    private

    def stored(key)
      return key if stored?(key)

      case key
      when Symbol then key.name
      when String then key.to_sym
      else key
      end
    end
  end
end
